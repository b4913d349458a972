"""Plans regions: the batches of calls that read each other, and what each gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynbatch.batcher.schedule.argument_arrays import Entries, Pending
from dynbatch.batcher.schedule.call_batches import Ordered, call_batches
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.cells.calls.region import (
    CallBatch,
    CallGroup,
    CallRegion,
    CallStream,
    Earlier,
    Fetch,
    Inner,
    PackedRows,
    Space,
)
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.step import CompiledStep
from dynbatch.cells.calls.table import NOT_RUN, CallRun, CallTable
from dynbatch.nodes.base import Node
from dynbatch.parameter import Array


class RegionPlanner:
    """Makes the regions of one run.

    Args:
        policy: a name of `policies.POLICIES`, or a function.
    """

    def __init__(self, policy: str | Policy) -> None:
        self._policy = policy
        self._made = 0

    def plan(self, pending: Sequence[Pending]) -> list[RegionNode]:
        """The regions of one phase: calls of tables that read each other, directly or not."""
        nodes = []
        for part in connected(pending):
            builder = RegionBuilder(part, call_batches(part, self._policy))
            nodes.append(builder.node(self._made))
            self._made += 1
        return nodes


def connected(pending: Sequence[Pending]) -> list[list[Pending]]:
    """Groups of tables whose calls of this phase read each other, each in order of `pending`."""
    place = {one.table: k for k, one in enumerate(pending)}
    part = list(range(len(pending)))
    for k, one in enumerate(pending):
        for table in one.reads_now:
            other = place.get(table)
            if other is not None and part[other] != part[k]:
                old, new = part[k], part[other]
                part = [new if number == old else number for number in part]
    return [
        [one for k, one in enumerate(pending) if part[k] == number]
        for number in dict.fromkeys(part)
    ]


@dataclass
class Reads:
    """The entries of one stream, in the order of the calls that they are for.

    targets: (M,) the call's row in its group; increasing.
    """

    entries: Entries
    shift: int
    order: Array
    targets: Array


class Inside(NamedTuple):
    """Entries that are one value of calls of a group of the same region: gathers, by batch."""

    group: int
    value: int
    cut: list[tuple[int, Fetch]]


class RegionBuilder:
    """One region on its way: sources and spaces, entered as arguments ask for them."""

    def __init__(self, pending: Sequence[Pending], ordered: Ordered) -> None:
        self._pending = pending
        self._ordered = ordered
        self._groups: list[CallGroup] = []
        self._sources: list[list[Node]] = []
        self._spaces: dict[Space, int] = {}
        self._place = {one.table: k for k, one in enumerate(pending)}
        self._places = [np.argsort(order) for order in ordered.order]  # rows of pending calls
        self._fetches: list[list[list[tuple[int, Fetch]]]] = []

    def node(self, number: int) -> RegionNode:
        """The region as a node. Its calls know it from now on."""
        offset = 0
        for k in range(len(self._pending)):
            offset = self._add_group(k, offset)
        batches = []
        taken = [0] * len(self._groups)
        for k, first, end in self._ordered.batches:
            batches.append(CallBatch(k, first, end, self._fetches[k][taken[k]]))
            taken[k] += 1
        region = CallRegion(
            self._groups, batches, self._sources, list(self._spaces), self._ordered.lower_bound,
            number,
        )  # fmt: skip
        inputs = dict.fromkeys([node for nodes in self._sources for node in nodes])
        graph = self._pending[0].table.graph
        made = RegionNode(*inputs, graph=graph, region=region)
        for group in self._groups:
            run = CallRun(made, group.offset, group.count, group.cell)
            group.table.settle(group.rows, run)
        return made

    def _add_group(self, k: int, offset: int) -> int:
        pending, order = self._pending[k], self._ordered.order[k]
        table = pending.table
        place = self._places[k]
        by_entries: dict[Entries, tuple[Array, Array, Array | None]] = {}
        for entries in pending.columns:
            calls = place[entries.call_of(order.size)]
            by_target = order if entries.counts is None else np.argsort(calls, kind="stable")
            marks = self._inside(pending, entries)
            by_entries[entries] = (by_target, calls[by_target], marks)
        reads = [Reads(one, shift, *by_entries[one][:2]) for one, shift in pending.leaves]
        inside = [by_entries[one][2] for one, _ in pending.leaves]
        tokens = frozenset([i for i, marks in enumerate(inside) if marks is None])
        cell = table.compiled(tokens)
        ends = np.array([end for group, _, end in self._ordered.batches if group == k])
        fetches: list[list[tuple[int, Fetch]]] = [[] for _ in ends]
        arguments = []
        known: dict[Entries, list[Inside]] = {}
        for i, (read, marks) in enumerate(zip(reads, inside, strict=True)):
            width = cell.program.streams[i].width
            arguments.append(CallStream(width, self._ahead(read, marks, width, order.size)))
            if marks is None:
                continue
            if read.entries not in known:  # the leaves of one argument share them
                known[read.entries] = self._inner(read, marks, ends)
            for group, value, cut in known[read.entries]:
                space = self._space(Inner(group, value + read.shift))
                for number, fetch in cut:
                    fetches[number].append((i, fetch._replace(space=space)))
        constants = [self._source([node]) for node in table.hoisted.of_constants(cell)]
        memories, memory_of = self._memories(pending, cell, order, arguments)
        self._groups.append(
            CallGroup(
                table, cell, pending.rows[order], offset, arguments, constants, memories, memory_of
            )
        )  # fmt: skip
        self._fetches.append(fetches)
        return offset + order.size * cell.width

    def _memories(
        self, pending: Pending, cell: CompiledStep, order: Array, arguments: list[CallStream]
    ) -> tuple[list[list[int]], Array]:
        """Sources of the loop's memories, and which each call reads; adds their summaries."""
        if pending.by_memory is None:
            return [], np.zeros(order.size, np.int64)
        given, place = pending.by_memory
        memory_of = place[order]
        nodes = pending.table.hoisted.of_all(cell, given)
        num_memories = len(cell.program.memory_nodes)
        for node, made in zip(cell.program.summaries, nodes[num_memories:], strict=True):
            space = self._space(PackedRows(self._source(made), node.width))
            fetch = Fetch(space, memory_of, None, None, _is_unique(memory_of))
            arguments.append(CallStream(node.width, [fetch]))
        return [[self._source(made)] for made in nodes[:num_memories]], memory_of

    def _inside(self, pending: Pending, entries: Entries) -> Array | None:
        """(M,) which entries are calls of this region; None if no one is."""
        found: Array | None = None
        for origin in entries.origins:
            if origin in self._place:
                marks = pending.reads_inside(entries, origin)
                found = marks if found is None else found | marks
        return None if found is None or not found.any() else found

    # What is known ahead --------------------------------------------------------------------------

    def _ahead(self, read: Reads, inside: Array | None, width: int, count: int) -> list[Fetch]:
        entries = read.entries
        nodes = [k for k, o in enumerate(entries.origins) if isinstance(o, Node)]
        found: list[Fetch] = []
        code = entries.code[read.order]
        if nodes:
            sources = [entries.origins[k] for k in nodes]
            starts = np.zeros(len(entries.origins), np.int64)
            starts[nodes] = np.cumsum([0, *[node.rows for node in sources[:-1]]])
            chosen = np.isin(code, nodes) if len(nodes) < len(entries.origins) else None
            rows = (starts[entries.code] + entries.row)[read.order]
            space = self._space(PackedRows(self._source(sources), width))
            found.append(self._fetch(space, rows, read.targets, chosen, count, entries))
        outside = None if inside is None else ~inside[read.order]
        for number, origin in enumerate(entries.origins):
            if isinstance(origin, CallTable):
                chosen = code == number
                if outside is not None:
                    chosen &= outside
                if chosen.any():
                    found += self._earlier(read, origin, chosen, count)
        return found

    def _earlier(self, read: Reads, table: CallTable, chosen: Array, count: int) -> list[Fetch]:
        """Values of calls that an earlier region has made."""
        rows = read.entries.row[read.order]
        leaf = (read.entries.first + read.shift)[read.order]
        runs = np.where(chosen, table.run_of[np.where(chosen, rows, 0)], NOT_RUN)
        found = []
        for run in np.unique(runs[chosen]).tolist():
            node, offset, num_calls, cell = table.runs[run]
            source = self._source([node])
            for value in np.unique(leaf[runs == run]).tolist():
                space = self._space(
                    Earlier(
                        source, offset, num_calls, cell.width, cell.columns[value],
                        cell.program.exports[value].width,
                    )
                )  # fmt: skip
                some = (runs == run) & (leaf == value)
                places = table.position[np.where(some, rows, 0)]
                found.append(self._fetch(space, places, read.targets, some, count, read.entries))
        return found

    def _fetch(
        self, space: int, rows: Array, targets: Array, chosen: Array | None, count: int,
        entries: Entries,
    ) -> Fetch:  # fmt: skip
        if chosen is not None:
            rows, targets = rows[chosen], targets[chosen]
        unique = _is_unique(rows)
        if entries.counts is not None:
            distinct, starts = np.unique(targets, return_index=True)
            return Fetch(space, rows, distinct, starts, unique)
        return Fetch(space, rows, None if rows.size == count else targets, None, unique)

    # What earlier batches make --------------------------------------------------------------------

    def _inner(self, read: Reads, inside: Array, ends: Array) -> list[Inside]:
        """The entries that are calls of this region, by the table and value they stand for."""
        entries = read.entries
        code, rows = entries.code[read.order], entries.row[read.order]
        first, inner = entries.first[read.order], inside[read.order]
        found: list[Inside] = []
        for number, origin in enumerate(entries.origins):
            group = self._place.get(origin)
            if group is None:
                continue
            of_origin = inner & (code == number)
            source = self._pending[group].rows
            for value in np.unique(first[of_origin]).tolist():
                chosen = of_origin & (first == value)
                places = self._places[group][np.searchsorted(source, rows[chosen])]
                cut = _by_batch(places, read.targets[chosen], ends, entries.counts is not None)
                found.append(Inside(group, value, cut))
        return found

    def _source(self, nodes: list[Node]) -> int:
        """The number of a packed input."""
        for number, known in enumerate(self._sources):
            if known == nodes:
                return number
        self._sources.append(nodes)
        return len(self._sources) - 1

    def _space(self, space: Space) -> int:
        return self._spaces.setdefault(space, len(self._spaces))


def _by_batch(rows: Array, targets: Array, ends: Array, sums: bool) -> list[tuple[int, Fetch]]:
    """Gathers of `rows` for `targets` of a group, cut into its batches; the space is to be set."""
    unique = _is_unique(rows)
    cuts = np.searchsorted(targets, ends).tolist()
    found = []
    low = first = 0
    for number, (high, end) in enumerate(zip(cuts, ends.tolist(), strict=True)):
        if low < high:
            part: Array | None = targets[low:high] - first
            starts = None
            if sums:
                part, starts = np.unique(targets[low:high] - first, return_index=True)
            elif high - low == end - first:
                part = None
            found.append((number, Fetch(0, rows[low:high], part, starts, unique)))
        low, first = high, end
    return found


def _is_unique(rows: Array) -> bool:
    return bool(np.bincount(rows).max(initial=0) <= 1)
