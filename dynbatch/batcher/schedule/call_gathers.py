"""`Gathers`: plans the gathers of arguments of a region's calls, before each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynbatch.batcher.schedule.argument_arrays import Entries
from dynbatch.batcher.schedule.planned_calls import CallPlans
from dynbatch.cells.calls.region import Earlier, Fetch, PackedRows, Space
from dynbatch.cells.calls.table import NOT_RUN, CallTable
from dynbatch.nodes.node import Node
from dynbatch.parameter import Array


@dataclass
class Reads:
    """The entries of one stream, in the order of the calls that they are for.

    shift:   what to add to their `first`.
    targets: (M,) the call's row in its group; increasing.
    inside:  (M,) which entries are calls of the same region; None if there are none. Like the
        entries it is not in that order.
    """

    entries: Entries
    shift: int
    order: Array
    targets: Array
    inside: Array | None


class InnerReads(NamedTuple):
    """Entries that are one value of calls of a group of the same region: gathers, by batch."""

    group: int
    value: int
    by_batch: list[tuple[int, Fetch]]


class Gathers:
    """The gathers of one region, with the sources and spaces that they use so far.

    Attributes:
        sources: the nodes that each packed input of the region is made of.
    """

    def __init__(self, plans: CallPlans) -> None:
        self._plans = plans
        self.sources: list[list[Node]] = []
        self._begins: dict[int, dict[Node, int]] = {}
        self._fixed: set[int] = set()
        self._spaces: dict[Space, int] = {}

    @property
    def spaces(self) -> list[Space]:
        """All arrays that rows are gathered from."""
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
        """The number of a space."""
        return self._spaces.setdefault(space, len(self._spaces))

    def ahead(self, read: Reads, width: int, count: int) -> list[Fetch]:
        """The gathers before the first batch, for `count` calls: rows of nodes and of old calls.

        Args:
            width: of the stream.
        """
        entries = read.entries
        nodes = {k: o for k, o in enumerate(entries.origins) if isinstance(o, Node)}
        fetches: list[Fetch] = []
        code = entries.code[read.order]
        if nodes:
            starts = np.zeros(len(entries.origins), np.int64)
            source, begins = self.rows(list(nodes.values()))
            starts[[*nodes]] = [begins[node] for node in nodes.values()]
            chosen = np.isin(code, [*nodes]) if len(nodes) < len(entries.origins) else None
            rows = (starts[entries.code] + entries.row)[read.order]
            space = self.space(PackedRows(source, width))
            fetches.append(_fetch(space, rows, read, chosen, count))
        outside = None if read.inside is None else ~read.inside[read.order]
        for number, origin in enumerate(entries.origins):
            if isinstance(origin, CallTable):
                chosen = code == number
                if outside is not None:
                    chosen &= outside
                if chosen.any():
                    fetches += self._earlier(read, origin, chosen, count)
        return fetches

    def _earlier(self, read: Reads, table: CallTable, chosen: Array, count: int) -> list[Fetch]:
        """Values of calls of an earlier region."""
        plan = self._plans[table]
        rows = read.entries.row[read.order]
        leaf = (read.entries.first + read.shift)[read.order]
        runs = np.where(chosen, plan.run_of[np.where(chosen, rows, 0)], NOT_RUN)
        fetches = []
        for run in np.unique(runs[chosen]).tolist():
            source = self.source([plan.runs[run].node])
            for value in np.unique(leaf[runs == run]).tolist():
                space = self.space(Earlier.of_run(plan.runs[run], source, value))
                of_value = (runs == run) & (leaf == value)
                positions = plan.position[np.where(of_value, rows, 0)]
                fetches.append(_fetch(space, positions, read, of_value, count))
        return fetches


def _fetch(space: int, rows: Array, read: Reads, chosen: Array | None, count: int) -> Fetch:
    targets = read.targets
    if chosen is not None:
        rows, targets = rows[chosen], targets[chosen]
    unique = is_unique(rows)
    if read.entries.counts is not None:
        distinct, starts = np.unique(targets, return_index=True)
        return Fetch(space, rows, distinct, starts, unique)
    return Fetch(space, rows, None if rows.size == count else targets, None, unique)


def by_batch(rows: Array, targets: Array, ends: Array, sums: bool) -> list[tuple[int, Fetch]]:
    """Gathers of `rows` for `targets` of a group, cut into its batches; the space is to be set."""
    unique = is_unique(rows)
    cuts = np.searchsorted(targets, ends).tolist()
    fetches = []
    low = first = 0
    for number, (high, end) in enumerate(zip(cuts, ends.tolist(), strict=True)):
        if low < high:
            part: Array | None = targets[low:high] - first
            starts = None
            if sums:
                part, starts = np.unique(targets[low:high] - first, return_index=True)
            elif high - low == end - first:
                part = None
            fetches.append((number, Fetch(0, rows[low:high], part, starts, unique)))
        low, first = high, end
    return fetches


def is_unique(rows: Array) -> bool:
    """Whether all rows are different."""
    return bool(np.bincount(rows).max(initial=0) <= 1)
