"""Finds the nodes and calls that must run for some targets, in a possible order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import chain, count
from typing import cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.argument_arrays import Pending, edges_among
from dynbatch.batcher.schedule.call_regions import regions
from dynbatch.batcher.schedule.folds import Folds, can_fold, fold
from dynbatch.batcher.schedule.planned_calls import CallPlans, PlannedCalls
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.cells.calls.call import Call, ResultPart
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.stack import StackCalls, rows_by_table
from dynbatch.cells.calls.table import CallTable
from dynbatch.indexing import bincount
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation


def ancestors(
    targets: Iterable[Node],
    folds: Folds,
    kept: Container[int],
    tables: Sequence[CallTable] = (),
    policy: str | Policy = "",
    roots: Sequence[Node] | None = None,
) -> list[Operation]:
    """Uncomputed nodes that the targets need, in a topological order; a node for a region of calls.

    The calls of one phase wait for no ordinary node that waits for one of them, so all of them can
    run as one. Regions come before the ordinary nodes of their phase, which is a topological order;
    without calls the nodes are in creation order.

    Nothing is told to the calls: `RegionNode.settle` does that, once the nodes are to run. Only
    nodes in place of a cell's constants are made here, once a graph.

    Args:
        folds:  what may be folded; in place of a node that is, comes the one that stands for it.
        kept:   indices of nodes that must have a value and a gradient of their own.
        tables: of the graph, each up to date (`CallTable.update`).
        policy: of their batches.
        roots:  backward begins at these targets: calls that they do not need are in regions of
            their own. None where it begins at all of them, or nowhere.
    """
    needed = Needed(tables, folds, kept)
    needed.add_all(targets)
    if not tables:
        fold(needed.folded, needed.nodes)
        # What owns no kernel has been computed, or is found by its call.
        return cast("list[Operation]", [needed.nodes[index] for index in sorted(needed.nodes)])
    groups = {phase: [calls] for phase, calls in needed.pending.items()}
    if roots is not None:
        reached = Needed(tables, folds, kept)
        reached.add_all(roots)
        groups = {phase: needed.in_two(phase, reached) for phase in groups}
    numbers = count()
    of_calls: dict[int, list[RegionNode]] = {}
    for phase in sorted(needed.pending):
        apart = [regions(calls, policy, needed.plans, numbers) for calls in groups[phase]]
        of_calls[phase] = [*chain.from_iterable(apart)]
        for node in of_calls[phase]:
            # A cell's constants are made only now.
            needed.add([x for x in node.inputs if not isinstance(x, RegionNode)])
    fold(needed.folded, needed.nodes)
    plain: dict[int, list[Node]] = {}
    for index in sorted(needed.nodes):
        plain.setdefault(needed.nodes[index].phase, []).append(needed.nodes[index])
    nodes: list[Node] = []
    for phase in sorted({*of_calls, *plain}):
        nodes += [*of_calls.get(phase, ()), *plain.get(phase, ())]
    return cast("list[Operation]", nodes)


def ancestors_among(
    pending: Sequence[Node], targets: Iterable[Node], folds: Folds, kept: Container[int]
) -> list[Operation]:
    """`ancestors`, found in one pass over the nodes that have not been computed.

    That is quicker where most of them are needed, as they are for a loss.

    Args:
        pending: in creation order; targets, and all nodes that are read and lack a value, are
            among them.
    """
    nodes: dict[int, Node] = {}
    wanted = bytearray(1 + max([node.index for node in targets]))
    for node in targets:
        wanted[node.index] = 1
    readers = folds.readers
    folded: list[Node] = []
    end = len(wanted)
    for node in reversed(pending):
        index = node.index
        if index < end and wanted[index] and node._block is None:
            nodes[index] = node
            inputs = node.inputs
            if index in readers and can_fold(node, nodes, kept) and not wanted[inputs[0].index]:
                folded.append(node)
                inputs = inputs[0].inputs
            for x in inputs:
                wanted[x.index] = 1
    fold(folded, nodes)
    return cast("list[Operation]", [*reversed(nodes.values())])


_RESULTS = (Call, ResultPart)


class Needed:
    """Nodes and calls found so far.

    Attributes:
        nodes:   ordinary nodes by index.
        folded:  those among them whose input is not needed for their sake.
        plans:   the calls of each table, those that are needed marked.
        waiting: by phase, the tables that have calls which have not run, and the rows of these.
        pending: the calls among them that are needed, by phase.
    """

    def __init__(self, tables: Sequence[CallTable], folds: Folds, kept: Container[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.folded: list[Node] = []
        self._folds = folds
        self._kept = kept
        self.plans: CallPlans = {}
        self.waiting: dict[int, list[tuple[CallTable, Array]]] = {}
        self.pending: dict[int, list[Pending]] = {}
        for table in tables:
            self.plans[table] = PlannedCalls(table)
            for phase, rows in table.waiting_by_phase():
                self.waiting.setdefault(phase, []).append((table, rows))

    def add_all(self, targets: Iterable[Node]) -> None:
        self.add(targets)
        for phase in sorted(self.waiting, reverse=True):
            self.add_calls(phase)

    def in_two(self, phase: int, reached: Needed) -> list[list[Pending]]:
        rows = {calls.table: calls.rows for calls in reached.pending.get(phase, ())}
        groups: list[list[Pending]] = [[], []]
        for calls in self.pending[phase]:
            inside = np.isin(calls.rows, rows.get(calls.table, ()))
            for group, chosen in zip(groups, (inside, ~inside), strict=True):
                if chosen.any():
                    part = Pending(calls.table, phase, calls.rows[chosen], self.plans)
                    group.append(part)
        return [group for group in groups if group]

    def add(self, targets: Iterable[Node]) -> None:
        """Targets, with the ordinary nodes they need; of calls, those they read themselves."""
        stack: list[Node] = []
        stacked: list[StackCalls] = []
        self._add(targets, stack)
        while stack:
            node = stack.pop()
            if type(node) is StackCalls:
                stacked.append(node)
            elif node.index in self._folds.readers and can_fold(node, self.nodes, self._kept):
                self.folded.append(node)
                self._add(node.inputs[0].inputs, stack)
            else:
                self._add(node.inputs, stack)
        stacked.sort(key=lambda node: node.index)  # as a batch of them has them, as a rule
        for table, (_, rows) in rows_by_table(stacked).items():
            self.plans[table].marked[rows] = True

    def _add(self, nodes: Iterable[Node], stack: list[Node]) -> None:
        for x in nodes:
            if isinstance(x, _RESULTS):
                self.plans[x.origin].marked[x.row] = True
            elif x._block is None and x.index not in self.nodes:
                self.nodes[x.index] = x
                stack.append(x)

    def add_calls(self, phase: int) -> None:
        """The calls of a phase that anything found so far needs, and what those need."""
        waiting = self.waiting[phase]
        marks = [self.plans[table].marked[rows] for table, rows in waiting]
        if not any([mark.any() for mark in marks]):
            return
        pending = [Pending(table, phase, rows, self.plans) for table, rows in waiting]
        for calls, needed in zip(pending, _reached(pending, marks), strict=True):
            if not needed.all():
                calls.keep(needed)
        self.pending[phase] = pending = [calls for calls in pending if calls.rows.size]
        for calls in pending:
            for table in calls.tables():
                self.plans[table].marked[calls.reads_before(table)] = True
            self.add(calls.nodes())


def _reached(pending: Sequence[Pending], marks: Sequence[Array]) -> list[Array]:
    """The calls that are marked, and those that they read.

    Calls that nothing reads are taken away, again and again; as a rule there are none.
    """
    if all([mark.all() for mark in marks]):
        return list(marks)
    readers = np.concatenate(marks).astype(np.int64)
    reading, read = edges_among(pending)
    readers += bincount(read, minlength=readers.size)
    unread = np.flatnonzero(readers == 0).tolist()
    if unread:
        _take_away(unread, readers, reading, read)
    return np.split(readers > 0, np.cumsum([calls.rows.size for calls in pending])[:-1])


def _take_away(unread: list[int], readers: Array, reading: Array, read: Array) -> None:
    """Lower the reader counts of the inputs of unread calls; `unread` grows meanwhile."""
    reads: dict[int, list[int]] = {}
    for call, source in zip(reading.tolist(), read.tolist(), strict=True):
        reads.setdefault(call, []).append(source)
    for call in unread:
        for source in reads.get(call, ()):
            readers[source] -= 1
            if not readers[source]:
                unread.append(source)
