"""The arguments of calls as arrays: the source of each argument of each call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.planned_calls import CallPlans
from dynbatch.cells.calls.arguments import NodeArgument, TupleArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.column import Column
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.sums import TreeSums
from dynbatch.cells.calls.table import (
    NOT_RUN,
    ROW,
    ROW_BITS,
    CallGraph,
    CallTable,
    first_uses,
    number_of,
)
from dynbatch.indexing import bincount, repeat
from dynbatch.kernels.levels import levels
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row

Origin = CallTable | Node | None
"""The source of a value: a call's table, a node, or zeros."""


class Entries:
    """One argument of N calls: one entry per call, or several that are summed.

    Attributes:
        origins: the distinct tables, nodes, or None for zeros, in order of first use.
        code:    (M,) which of them.
        row:     (M,) row there.
        first:   (M,) which of the values of a call there.
        counts:  (N,) entries of each call; None for one each.

    Args:
        arguments: what calls were given, or numbers of it: see `CallGraph`.
    """

    __slots__ = ("code", "counts", "first", "origins", "row")

    def __init__(self, arguments: Sequence[Any] | Array, graph: CallGraph) -> None:
        self.counts: Array | None = None
        is_array = isinstance(arguments, np.ndarray)
        types = {int} if is_array else {*map(type, arguments)}
        if SumArgument in types:
            sums = [x.members if type(x) is SumArgument else (x,) for x in arguments]
            self.counts = np.fromiter(map(len, sums), np.int64, len(sums))
            arguments = list(chain.from_iterable(sums))
            types = set(map(type, arguments))
        count = len(arguments)
        self.first = np.zeros(count, np.int64)
        if not types.isdisjoint((ResultPart, TuplePart)):
            self.first[:] = [0 if type(x) is int else x.first for x in arguments]
        if int in types:
            numbers = arguments
            if len(types) > 1:
                numbers = [x if type(x) is int else number_of(x, graph) for x in arguments]
            values: Any = arguments if is_array else np.fromiter(numbers, np.int64, count)
            codes, self.row = values >> ROW_BITS, values & ROW
            used = first_uses(codes)
            if any([type(graph.origins[code]) is TreeSums for code in used]):
                codes = self._expand(codes, used, graph)
                used = first_uses(codes)
            self.origins: list[Origin] = [graph.origins[code] for code in used]
            places = np.zeros(len(graph.origins), np.int64)
            places[used] = range(len(used))
            self.code = places[codes]
        else:
            origins = [x.origin for x in arguments]
            self.origins = list(dict.fromkeys(origins))
            number = {origin: k for k, origin in enumerate(self.origins)}
            self.code = np.fromiter(map(number.__getitem__, origins), np.int64, count)
            self.row = np.fromiter([x.row for x in arguments], np.int64, count)

    def _expand(self, codes: Array, used: Sequence[int], graph: CallGraph) -> Array:
        """Put the terms of each of a tree's sums in its place: see `TreeSums`."""
        counts = np.ones(codes.size, np.int64)
        for code in used:
            sums = graph.origins[code]
            if type(sums) is TreeSums:
                chosen = codes == code
                codes[chosen], self.row[chosen], counts[chosen] = sums.terms(self.row[chosen])
        if codes.size and counts.max() > 1:
            starts = np.cumsum(counts) - counts
            within = np.arange(counts.sum()) - repeat(starts, counts)
            codes, self.first = repeat(codes, counts), repeat(self.first, counts)
            self.row = repeat(self.row, counts) + within
            if self.counts is None:
                self.counts = counts
            else:  # each of these stands for itself: sums are not summed
                self.counts = np.add.reduceat(counts, np.cumsum(self.counts) - self.counts)
        return codes

    def call_of(self, count: int) -> Array:
        """(M,) the number of each entry's call."""
        calls = np.arange(count)
        return calls if self.counts is None else repeat(calls, self.counts)

    def keep(self, calls: Array) -> None:
        """Drop the entries of calls that are not marked True."""
        entries = calls if self.counts is None else repeat(calls, self.counts)
        self.code, self.row, self.first = self.code[entries], self.row[entries], self.first[entries]
        if self.counts is not None:
            self.counts = self.counts[calls]
        used = np.unique(self.code)
        self.code = np.searchsorted(used, self.code)
        self.origins = [self.origins[k] for k in used]


_NUMBERED = frozenset((int, type(None), Call, Row, NodeArgument))
"""Types of arguments that a number says all of; None is one in an array."""


def read_column(
    column: Column, rows: Array, num_leaves: int, graph: CallGraph
) -> list[tuple[Entries, int]]:
    """The arguments of the calls in some rows, leaf by leaf."""
    arguments: Sequence[Any] | Array = column
    if column.is_entered or (column.entered and _NUMBERED.issuperset(map(type, column))):
        arguments = column.numbers(partial(number_of, graph=graph))
        arguments = arguments if rows.size == len(column) else arguments[rows]
    elif column.entered or rows.size < len(column):
        arguments = [column.at(row) for row in rows.tolist()]
    if isinstance(arguments, np.ndarray) or TupleArgument not in {*map(type, arguments)}:
        entries = Entries(arguments, graph)
        return [(entries, leaf) for leaf in range(num_leaves)]
    leaves = []
    for leaf in range(num_leaves):
        parts = [x.members[leaf] if type(x) is TupleArgument else x for x in arguments]
        entries = Entries(parts, graph)
        shifts = np.array([0 if type(x) is TupleArgument else leaf for x in arguments])
        counts = 1 if entries.counts is None else entries.counts
        entries.first = entries.first + repeat(shifts, counts)
        leaves.append((entries, 0))
    return leaves


class Pending:
    """Calls of one table to run in one phase.

    Attributes:
        rows:   (N,) their rows in the table, increasing.
        leaves: the entries of each vector and scalar of each argument, and what to add to their
            `first`; `memories`: those of each matrix.
    """

    def __init__(self, table: CallTable, phase: int, rows: Array, plans: CallPlans) -> None:
        self.table = table
        self.phase = phase
        self.rows = rows
        self._plans = plans
        leaves: list[tuple[Entries, int]] = []
        for column, num_leaves in zip(table.columns, table.forms, strict=True):
            leaves += read_column(column, rows, num_leaves, table.graph)
        self.columns = list(dict.fromkeys([entries for entries, _ in leaves]))
        marked = list(zip(leaves, table.matrices, strict=True))
        self.memories = [entries for (entries, _), is_matrix in marked if is_matrix]
        self.leaves = [leaf for leaf, is_matrix in marked if not is_matrix]

    def keep(self, needed: Array) -> None:
        """Drop the calls that are not marked True."""
        self.rows = self.rows[needed]
        for entries in self.columns:
            entries.keep(needed)

    def nodes(self) -> list[Node]:
        nodes = [o for entries in self.columns for o in entries.origins if isinstance(o, Node)]
        return list(dict.fromkeys(nodes))

    @cached_property
    def by_memory(self) -> tuple[list[tuple[Node, ...]], Array] | None:
        """The memories, those of most calls first, and the number of each call's memory.

        So the calls at one step of the longest sentences are, as a rule, those of the first
        memories: these are read where they lie.
        """
        if not self.memories:
            return None
        codes = np.stack([entries.code for entries in self.memories])
        distinct, which = np.unique(codes, axis=1, return_inverse=True)
        which = which.reshape(-1)
        order = np.argsort(-bincount(which), kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        origins: list[list[Any]] = [entries.origins for entries in self.memories]
        memories = [
            tuple([nodes[k] for nodes, k in zip(origins, column, strict=True)])
            for column in distinct[:, order].T.tolist()
        ]
        return memories, rank[which]

    @cached_property
    def reads_now(self) -> list[CallTable]:
        return [
            table
            for table in self.tables()
            if any(
                [
                    self.reads_inside(entries, table).any()
                    for entries in self.columns
                    if table in entries.origins
                ]
            )
        ]

    def tables(self) -> list[CallTable]:
        origins = [o for entries in self.columns for o in entries.origins]
        return list(dict.fromkeys([o for o in origins if isinstance(o, CallTable)]))

    def reads_inside(self, entries: Entries, origin: CallTable) -> Array:
        """(M,) whether each entry is a call of `origin` in the same phase."""
        chosen = entries.code == entries.origins.index(origin)
        rows = np.where(chosen, entries.row, 0)
        plan = self._plans[origin]
        fresh = (plan.run_of[rows] == NOT_RUN) & (plan.ready[rows] == self.phase)
        inside: Array = chosen & fresh
        return inside

    def edges(self, other: Pending) -> tuple[Array, Array]:
        """Pairs (M,), (M,) of these calls and the other's calls that they read, in this phase."""
        readers, read = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for entries in self.columns:
            if other.table in entries.origins:
                inside = self.reads_inside(entries, other.table)
                readers.append(entries.call_of(self.rows.size)[inside])
                read.append(np.searchsorted(other.rows, entries.row[inside]))
        return np.concatenate(readers), np.concatenate(read)

    def reads_before(self, origin: CallTable) -> Array:
        """Rows of `origin` that these calls read, and that run in an earlier phase of this run."""
        plan = self._plans[origin]
        earlier = []
        for entries in self.columns:
            if origin in entries.origins:
                rows = entries.row[entries.code == entries.origins.index(origin)]
                waits = (plan.run_of[rows] == NOT_RUN) & (plan.ready[rows] < self.phase)
                earlier.append(rows[waits])
        return np.concatenate(earlier)

    def depths(self) -> Array:
        """The length of the chain of calls, in this run and table, that each call waits for.

        What was counted when the calls were made holds unless some have run by now.
        """
        if not self._plans[self.table].runs:
            counted: Array = self.table.depth[self.rows]
            return counted
        return levels(self.rows.size, *self.edges(self))


def edges_among(pending: Sequence[Pending]) -> tuple[Array, Array]:
    """Both ends (M,), (M,) of each edge between the calls of some tables, counted through."""
    starts = np.cumsum([0, *[calls.rows.size for calls in pending]])
    ends = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for start, calls in zip(starts, pending, strict=False):
        tables = {*calls.tables()}
        for first, other in zip(starts, pending, strict=False):
            if other.table in tables:
                readers, read = calls.edges(other)
                ends.append((start + readers, first + read))
    readers, read = map(np.concatenate, zip(*ends, strict=True))
    return readers, read
