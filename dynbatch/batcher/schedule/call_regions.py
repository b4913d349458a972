"""Plans regions: the batches of calls that read each other, and what each gathers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.batcher.schedule import call_gathers
from dynbatch.batcher.schedule.argument_arrays import Entries, Origin, Pending
from dynbatch.batcher.schedule.call_batches import Ordered, call_batches
from dynbatch.batcher.schedule.call_gathers import Gathers, InnerReads, Reads, is_unique
from dynbatch.batcher.schedule.planned_calls import CallPlans
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.cells.calls.compiled_step import CompiledStep
from dynbatch.cells.calls.region import (
    CallBatch,
    CallGroup,
    CallRegion,
    CallStream,
    Fetch,
    Inner,
    PackedRows,
)
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import CallTable
from dynbatch.parameter import Array


class RegionPlanner:
    """Makes the regions of one run.

    Args:
        policy: a name of `policies.POLICIES`, or a function.
        plans:  what has run and is planned; the regions are entered here, and nowhere else.
    """

    def __init__(self, policy: str | Policy, plans: CallPlans) -> None:
        self._policy = policy
        self._plans = plans
        self._count = 0

    def plan(self, pending: Sequence[Pending]) -> list[RegionNode]:
        """The regions of one phase: calls of tables that read each other, directly or not."""
        nodes = []
        for part in connected(pending):
            builder = RegionBuilder(part, call_batches(part, self._policy), self._plans)
            node = builder.node(self._count)
            for group, run in zip(node.region.groups, node.call_runs(), strict=True):
                self._plans[group.table].add_run(group.rows, run)
            nodes.append(node)
            self._count += 1
        return nodes


def connected(pending: Sequence[Pending]) -> list[list[Pending]]:
    """Groups of tables whose calls of this phase read each other, each in order of `pending`."""
    number = {calls.table: k for k, calls in enumerate(pending)}
    part = list(range(len(pending)))
    for k, calls in enumerate(pending):
        for table in calls.reads_now:
            other = number.get(table)
            if other is not None and part[other] != part[k]:
                old, new = part[k], part[other]
                part = [new if p == old else p for p in part]
    return [[calls for k, calls in enumerate(pending) if part[k] == p] for p in dict.fromkeys(part)]


class RegionBuilder:
    """Builds one region, group by group."""

    def __init__(self, pending: Sequence[Pending], ordered: Ordered, plans: CallPlans) -> None:
        self._pending = pending
        self._ordered = ordered
        self._groups: list[CallGroup] = []
        self._gathers = Gathers(plans)
        self._number: dict[Origin, int] = {calls.table: k for k, calls in enumerate(pending)}
        # Of each pending call its row in the group.
        self._row_in_group = [np.argsort(order) for order in ordered.order]
        self._fetches: list[list[list[tuple[int, Fetch]]]] = []

    def node(self, number: int) -> RegionNode:
        """The region as a node."""
        offset = 0
        for k in range(len(self._pending)):
            offset = self._add_group(k, offset)
        batches = []
        taken = [0] * len(self._groups)
        for k, first, end in self._ordered.batches:
            batches.append(CallBatch(k, first, end, self._fetches[k][taken[k]]))
            taken[k] += 1
        sources = self._gathers.sources
        region = CallRegion(
            self._groups, batches, sources, self._gathers.spaces, self._ordered.lower_bound, number
        )
        inputs = dict.fromkeys([node for nodes in sources for node in nodes])
        return RegionNode(*inputs, graph=self._pending[0].table.graph, region=region)

    def _add_group(self, k: int, offset: int) -> int:
        pending, order = self._pending[k], self._ordered.order[k]
        table = pending.table
        reads = self._reads(pending, order, self._row_in_group[k])
        tokens = frozenset([i for i, read in enumerate(reads) if read.inside is None])
        cell = table.compiled(tokens)
        ends = np.array([end for group, _, end in self._ordered.batches if group == k])
        fetches: list[list[tuple[int, Fetch]]] = [[] for _ in ends]
        arguments = []
        known: dict[Entries, list[InnerReads]] = {}
        for i, read in enumerate(reads):
            width = cell.program.streams[i].width
            arguments.append(CallStream(width, self._gathers.ahead(read, width, order.size)))
            if read.inside is None:
                continue
            if read.entries not in known:  # the leaves of one argument share them
                known[read.entries] = self._inner(read, read.inside, ends)
            for group, value, by_batch in known[read.entries]:
                space = self._gathers.space(Inner(group, value + read.shift))
                for number, fetch in by_batch:
                    fetches[number].append((i, fetch._replace(space=space)))
        constants = [self._gathers.source([node]) for node in table.hoisted.of_constants(cell)]
        memories, memory_of = self._memories(pending, cell, order, arguments)
        self._groups.append(
            CallGroup(
                table, cell, pending.rows[order], offset, arguments, constants, memories, memory_of
            )
        )  # fmt: skip
        self._fetches.append(fetches)
        return offset + order.size * cell.width

    def _reads(self, pending: Pending, order: Array, row_in_group: Array) -> list[Reads]:
        """The entries of each stream of a group."""
        columns: dict[Entries, tuple[Array, Array, Array | None]] = {}
        for entries in pending.columns:
            calls = row_in_group[entries.call_of(order.size)]
            by_target = order if entries.counts is None else np.argsort(calls, kind="stable")
            columns[entries] = (by_target, calls[by_target], self._inside(pending, entries))
        return [Reads(entries, shift, *columns[entries]) for entries, shift in pending.leaves]

    def _memories(
        self, pending: Pending, cell: CompiledStep, order: Array, arguments: list[CallStream]
    ) -> tuple[list[int], Array]:
        """Sources of the loop's memories, and which each call reads; adds their summaries."""
        if pending.by_memory is None:
            return [], np.zeros(order.size, np.int64)
        given, which = pending.by_memory
        memory_of = which[order]
        nodes = pending.table.hoisted.of_all(cell, given)
        num_memories = len(cell.program.memory_nodes)
        for summary, rows in zip(cell.program.summaries, nodes[num_memories:], strict=True):
            space = self._gathers.space(PackedRows(self._gathers.source(rows), summary.width))
            fetch = Fetch(space, memory_of, None, None, is_unique(memory_of))
            arguments.append(CallStream(summary.width, [fetch]))
        return [self._gathers.source(rows) for rows in nodes[:num_memories]], memory_of

    def _inside(self, pending: Pending, entries: Entries) -> Array | None:
        """(M,) which entries are calls of this region; None if there are none."""
        inside: Array | None = None
        for origin in entries.origins:
            if isinstance(origin, CallTable) and origin in self._number:
                marks = pending.reads_inside(entries, origin)
                inside = marks if inside is None else inside | marks
        return None if inside is None or not inside.any() else inside

    def _inner(self, read: Reads, inside: Array, ends: Array) -> list[InnerReads]:
        """The entries that are calls of this region, by the table and value they stand for."""
        entries = read.entries
        code, rows = entries.code[read.order], entries.row[read.order]
        first, inner = entries.first[read.order], inside[read.order]
        reads: list[InnerReads] = []
        for number, origin in enumerate(entries.origins):
            group = self._number.get(origin)
            if group is None:
                continue
            of_origin = inner & (code == number)
            pending_rows = self._pending[group].rows
            for value in np.unique(first[of_origin]).tolist():
                chosen = of_origin & (first == value)
                pending_calls = np.searchsorted(pending_rows, rows[chosen])
                rows_in_group = self._row_in_group[group][pending_calls]
                sums = entries.counts is not None
                fetches = call_gathers.by_batch(rows_in_group, read.targets[chosen], ends, sums)
                reads.append(InnerReads(group, value, fetches))
        return reads
