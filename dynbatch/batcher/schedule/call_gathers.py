"""`Gathers`: plans what the arguments of a region's calls are gathered from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.argument_arrays import Entries
from dynbatch.batcher.schedule.planned_calls import CallPlans
from dynbatch.cells.calls.region import (
    Earlier,
    Inner,
    PackedRows,
    Space,
    StreamGather,
    by_run_and_value,
)
from dynbatch.cells.calls.table import NOT_RUN, CallTable
from dynbatch.indexing import repeat
from dynbatch.kernels.gathers import GatherTable
from dynbatch.nodes.node import Node


class ArgumentGather(NamedTuple):
    """The rows that one argument is gathered from, which are equal for each of its leaves.

    spaces: of each array that the table reads, those of the first leaf.
    ahead:  whether no call of the region is among it.
    """

    table: GatherTable
    spaces: list[Space]
    ahead: bool

    def of_leaf(self, leaf: int, width: int, gathers: Gathers) -> StreamGather:
        spaces = [_of_leaf(space, leaf, width) for space in self.spaces]
        lies_so = len(spaces) == 1 and isinstance(spaces[0], PackedRows)
        view = self.table.view() if lies_so else None
        return StreamGather([*map(gathers.space, spaces)], self.table, self.ahead, view)


class Gathers:
    """The gathers of one region, with the sources and spaces that they use so far.

    Args:
        plans: what has run and is planned.
        inner: of each table with calls in the region, the number of its group, and for each row of
            the table the call's row in the group, or -1.

    Attributes:
        sources: the nodes that each packed input of the region is made of.
    """

    def __init__(self, plans: CallPlans, inner: Mapping[CallTable, tuple[int, Array]]) -> None:
        self._plans = plans
        self._inner = inner
        self.sources: list[list[Node]] = []
        self._begins: dict[int, dict[Node, int]] = {}
        self._fixed: set[int] = set()
        self._spaces: dict[Space, int] = {}

    @property
    def spaces(self) -> list[Space]:
        return list(self._spaces)

    def source(self, nodes: list[Node]) -> int:
        """The number of the packed input that holds these nodes and no others."""
        number = self._source(nodes)
        self._fixed.add(number)
        return number

    def _source(self, nodes: list[Node]) -> int:
        for number, known in enumerate(self.sources):
            if known == nodes:
                return number
        self.sources.append(list(nodes))
        return len(self.sources) - 1

    def rows(self, nodes: list[Node]) -> tuple[int, dict[Node, int]]:
        """A packed input that holds these nodes among others, and the first row of each.

        Nodes that another stream reads too join those of that stream: so a value has one gradient,
        and one order of its sum, also where not all sentences' values are read by both.
        """
        for number, begins in self._begins.items():
            missing = [node for node in nodes if node not in begins]
            if not missing or (len(missing) < len(nodes) and number not in self._fixed):
                self.sources[number] += missing
                break
        else:
            number, missing = self._source(nodes), nodes
            begins = self._begins.setdefault(number, {})
        row = sum([node.rows for node in begins])
        for node in missing:
            begins[node] = row
            row += node.rows
        return number, begins

    def space(self, space: Space) -> int:
        return self._spaces.setdefault(space, len(self._spaces))

    def of_argument(self, entries: Entries, calls: Array) -> ArgumentGather:
        """The gather of one argument of a group's calls.

        Args:
            calls: (N,) of each row of the group, which of the entries' calls it is.
        """
        order, starts = _terms(entries, calls)
        code, rows, first = entries.code[order], entries.row[order], entries.first[order]
        of = np.full(order.size, -1)
        spaces: list[Space] = []
        nodes = {k: origin for k, origin in enumerate(entries.origins) if isinstance(origin, Node)}
        if nodes:
            source, begins = self.rows([*nodes.values()])
            shifts = np.zeros(len(entries.origins), np.int64)
            shifts[[*nodes]] = [begins[node] for node in nodes.values()]
            rows += shifts[code]
            is_node = np.zeros(len(entries.origins), bool)
            is_node[[*nodes]] = True
            of[is_node[code]] = 0
            spaces.append(PackedRows(source, 0))
        ahead = True
        for number, table in enumerate(entries.origins):
            if not isinstance(table, CallTable):
                continue
            plan = self._plans[table]
            terms = np.flatnonzero(code == number)
            of_runs = plan.run_of[rows[terms]]
            for run, value, chosen in by_run_and_value(table, of_runs, first[terms]):
                if run == NOT_RUN:  # it is one of this region's
                    group, places = self._inner[table]
                    space: Space = Inner(group, value)
                    ahead = False
                else:
                    node, results = plan.runs[run]
                    source, places = self.source([node]), plan.position
                    space = Earlier(source, results, value)
                of[terms[chosen]] = len(spaces)
                rows[terms[chosen]] = places[rows[terms[chosen]]]
                spaces.append(space)
        is_one = len(spaces) == 1 and bool((of == 0).all())
        return ArgumentGather(GatherTable(rows, None if is_one else of, starts), spaces, ahead)


def _terms(entries: Entries, calls: Array) -> tuple[Array, Array | None]:
    """The entries in the order of some calls, and where those of each begin; see `GatherTable`."""
    if entries.counts is None:
        return calls, None
    counts = entries.counts[calls]
    starts = np.append(0, np.cumsum(counts))
    begins = np.cumsum(entries.counts) - entries.counts
    return repeat(begins[calls] - starts[:-1], counts) + np.arange(starts[-1]), starts


def _of_leaf(space: Space, leaf: int, width: int) -> Space:
    if isinstance(space, PackedRows):
        return PackedRows(space.source, width)
    if isinstance(space, Inner):
        return Inner(space.group, space.leaf + leaf)
    return Earlier(space.source, space.results, space.leaf + leaf)
