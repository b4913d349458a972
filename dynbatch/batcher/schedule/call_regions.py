"""Plans regions: the batches of calls that read each other, and what each gathers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.argument_arrays import Pending
from dynbatch.batcher.schedule.call_batches import Ordered, call_batches
from dynbatch.batcher.schedule.call_gathers import Gathers
from dynbatch.batcher.schedule.planned_calls import CallPlans
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.cells.calls.compiled_step import CompiledStep
from dynbatch.cells.calls.region import (
    CallBatch,
    CallGroup,
    CallRegion,
    PackedRows,
    StreamGather,
)
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.table import NOT_RUN, ResultRows
from dynbatch.kernels.gathers import GatherTable


def regions(
    pending: Sequence[Pending], policy: str | Policy, plans: CallPlans, numbers: Iterator[int]
) -> list[RegionNode]:
    """The regions of one phase: calls of tables that read each other, directly or not.

    Args:
        policy:  a name of `policies.POLICIES`, or a function.
        plans:   what has run and is planned; the regions are entered here, and nowhere else.
        numbers: of the run's regions.
    """
    nodes = []
    for part in connected(pending):
        node = RegionBuilder(part, call_batches(part, policy), plans).node(next(numbers))
        for group, run in zip(node.region.groups, node.call_runs(), strict=True):
            plans[group.table].add_run(group.rows, run)
        nodes.append(node)
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
        inner = {}
        for number, (calls, order) in enumerate(zip(pending, ordered.order, strict=True)):
            places = np.full(len(calls.table.calls), NOT_RUN)
            places[calls.rows[order]] = np.arange(order.size)
            inner[calls.table] = (number, places)
        self._gathers = Gathers(plans, inner)

    def node(self, number: int) -> RegionNode:
        offset = 0
        for pending, order in zip(self._pending, self._ordered.order, strict=True):
            offset = self._add_group(pending, order, offset)
        batches = [CallBatch(*batch) for batch in self._ordered.batches]
        sources = self._gathers.sources
        region = CallRegion(
            self._groups, batches, sources, self._gathers.spaces, self._ordered.lower_bound, number
        )
        inputs = dict.fromkeys([node for nodes in sources for node in nodes])
        return RegionNode(*inputs, graph=self._pending[0].table.graph, region=region)

    def _add_group(self, pending: Pending, order: Array, offset: int) -> int:
        gathers, table = self._gathers, pending.table
        arguments = dict.fromkeys([entries for entries, _ in pending.leaves])
        known = {entries: gathers.of_argument(entries, order) for entries in arguments}
        leaf_entries = [known[entries] for entries, _ in pending.leaves]
        cell = table.compiled(frozenset([k for k, x in enumerate(leaf_entries) if x.ahead]))
        widths = [value.width for value in cell.program.streams]
        streams = [
            x.of_leaf(leaf, width, gathers)
            for x, (_, leaf), width in zip(leaf_entries, pending.leaves, widths, strict=False)
        ]
        memories, memory_of = self._memories(pending, cell, order, streams)
        for node in table.hoisted.of_constants(cell):
            space = gathers.space(PackedRows(gathers.source([node]), widths[len(streams)]))
            streams.append(StreamGather([space], GatherTable(np.zeros_like(order)), True))
        results = ResultRows(offset, order.size, cell)
        self._groups.append(
            CallGroup(table, pending.rows[order], results, streams, memories, memory_of)
        )
        return offset + order.size * cell.width

    def _memories(
        self, pending: Pending, cell: CompiledStep, order: Array, streams: list[StreamGather]
    ) -> tuple[list[int], Array]:
        """Sources of the loop's memories, and which each call reads; adds their summaries."""
        if pending.by_memory is None:
            return [], np.zeros(order.size, np.int64)
        memories, which = pending.by_memory
        memory_of = which[order]
        nodes = pending.table.hoisted.of_all(cell, memories)
        num_memories = len(cell.program.memory_nodes)
        for summary, rows in zip(cell.program.summaries, nodes[num_memories:], strict=True):
            space = self._gathers.space(PackedRows(self._gathers.source(rows), summary.width))
            streams.append(StreamGather([space], GatherTable(memory_of), True))
        return [self._gathers.source(rows) for rows in nodes[:num_memories]], memory_of
