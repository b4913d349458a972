"""Regions: calls that read each other, of all sentences, which run as one node of the graph.

The classes here form a region's plan: calls, batches and gathers. `batcher.schedule.call_regions`
makes it and `region_node` carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.compiled_step import CompiledStep
from dynbatch.cells.calls.table import CallTable, ResultRows
from dynbatch.indexing import bincount
from dynbatch.kernels.gathers import GatherTable
from dynbatch.nodes.node import Node
from dynbatch.ragged import Ragged


@dataclass(frozen=True)
class Inner:
    """Values of calls of the same region: each call's value number `leaf`."""

    group: int
    leaf: int


@dataclass(frozen=True)
class PackedRows:
    """Rows of one width, an input of the region."""

    source: int
    width: int

    def of(self, packed: Ragged) -> Array:
        return packed.flat.reshape(-1, self.width)


@dataclass(frozen=True)
class Earlier:
    """Values of calls of a region that ran before: each call's value number `leaf`.

    source: the input of that region's value.
    """

    source: int
    results: ResultRows
    leaf: int

    def of(self, packed: Ragged) -> Array:
        return self.results.values(packed.flat, self.leaf)


Space = Inner | PackedRows | Earlier


def by_run_and_value(
    table: CallTable, run_of: Array, first: Array
) -> Iterator[tuple[int, int, Array]]:
    """Results of a table's calls by what they are: run, number of the value, and which of them.

    Args:
        run_of, first: (M,) of each result.
    """
    keys = run_of * len(table.widths) + first
    least = int(keys.min(initial=0))
    for key in np.flatnonzero(bincount(keys - least)).tolist():  # few: not worth a sort
        run, value = divmod(key + least, len(table.widths))
        yield run, value, np.flatnonzero(keys == key + least)


class StreamGather(NamedTuple):
    """The sources of a stream's rows, one for each call of a group.

    spaces: of each array that the table reads, its place in the region's `spaces`.
    ahead:  whether all of it is known before the first batch.
    view:   the rows of an input that they are, where these lie in the order of the calls: then
        nothing is gathered.
    """

    spaces: list[int]
    table: GatherTable
    ahead: bool
    view: slice | None = None


class CallGroup(NamedTuple):
    """The calls of one table in a region.

    rows:    their rows in the table, in the order in which they lie in the region's value.
    results: where that is.
    streams: of each, what is gathered: arguments, then summaries of memories, then constants.
    memories: of each matrix that the loop reads, the input that holds those of all sentences;
        `memory_of` (N,): the sentence, in the order of that input, of each call.
    """

    table: CallTable
    rows: Array
    results: ResultRows
    streams: list[StreamGather]
    memories: list[int]
    memory_of: Array

    @property
    def cell(self) -> CompiledStep:
        return self.results.step

    @property
    def calls(self) -> int:
        return self.results.calls

    @property
    def views(self) -> dict[int, slice]:
        """The streams that are rows of an input, where these lie."""
        return {k: x.view for k, x in enumerate(self.streams) if x.view is not None}


class CallBatch(NamedTuple):
    """Calls that run together: rows [first, end) of a group."""

    group: int
    first: int
    end: int


@dataclass
class CallRegion:
    """The plan of a region.

    sources: the nodes that each packed input is made of.
    spaces:  all places that rows are gathered from.
    batches: in order.
    lower_bound: no order of batches has fewer.
    number:  identifies the region in its graph.
    """

    groups: list[CallGroup]
    batches: list[CallBatch]
    sources: list[list[Node]]
    spaces: list[Space]
    lower_bound: int
    number: int

    @property
    def size(self) -> int:
        return sum([group.calls * group.cell.width for group in self.groups])

    def is_at_once(self, group: int) -> bool:
        return self.most(group) == self.groups[group].calls

    def read_once(self) -> set[int]:
        """The inputs that one stream of one group reads, and nothing else."""
        spaces = [self.spaces[k] for g in self.groups for x in g.streams for k in x.spaces]
        read = [space.source for space in spaces if not isinstance(space, Inner)]
        count = Counter([*read, *[source for group in self.groups for source in group.memories]])
        return {source for source, times in count.items() if times == 1}

    def most(self, group: int) -> int:
        return max([batch.end - batch.first for batch in self.batches if batch.group == group])

    def chosen_memories(self, group: int) -> dict[int, Array]:
        """The memories that a group's calls read, by the numbers of the batches in which they are
        not the first ones in order.

        The other batches have fewer and fewer calls, as the steps of a scan.
        """
        chosen, running = {}, self.groups[group].calls
        for t, (number, first, end) in enumerate(self.batches):
            read = self.groups[group].memory_of[first:end]
            if number != group:
                continue
            if read.size <= running and (read == np.arange(read.size)).all():
                running = read.size
            else:
                chosen[t] = read
        return chosen

    @property
    def count(self) -> int:
        return sum([group.calls for group in self.groups])
