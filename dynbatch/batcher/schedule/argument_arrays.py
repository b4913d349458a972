"""What calls were given, as arrays: from where each argument of each call comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dynbatch.cells.calls.arguments import SumArgument, TupleArgument
from dynbatch.cells.calls.call import ResultPart, TuplePart
from dynbatch.cells.calls.table import NOT_RUN, CallTable
from dynbatch.nodes.base import Node
from dynbatch.parameter import Array


class Entries:
    """One argument of N calls: an entry a call, or several where they are summed.

    Attributes:
        origins: the distinct tables, nodes, or None for zeros, in order of first use.
        code:    (M,) which of them.
        row:     (M,) row there.
        first:   (M,) which of the values of a call there.
        counts:  (N,) entries of each call; None for one each.
    """

    __slots__ = ("code", "counts", "first", "origins", "row")

    def __init__(self, given: Sequence[Any]) -> None:
        kinds = set(map(type, given))
        self.counts: Array | None = None
        if SumArgument in kinds:
            members = [one.members if type(one) is SumArgument else (one,) for one in given]
            self.counts = np.array([len(some) for some in members])
            given = [one for some in members for one in some]
        origins = [one.origin for one in given]
        self.origins: list[Any] = list(dict.fromkeys(origins))
        if len(self.origins) == 1:
            self.code = np.zeros(len(given), np.int64)
        else:
            number = {origin: k for k, origin in enumerate(self.origins)}
            self.code = np.array([number[origin] for origin in origins])
        self.row = np.array([one.row for one in given])
        if kinds.isdisjoint((ResultPart, TuplePart, SumArgument)):
            self.first = np.zeros(len(given), np.int64)
        else:
            self.first = np.array([one.first for one in given])

    def call_of(self, count: int) -> Array:
        """(M,) which of the N calls each entry belongs to."""
        calls = np.arange(count)
        return calls if self.counts is None else np.repeat(calls, self.counts)

    def keep(self, calls: Array) -> None:
        """Drop the entries of calls that are not marked True."""
        entries = calls if self.counts is None else np.repeat(calls, self.counts)
        self.code, self.row, self.first = self.code[entries], self.row[entries], self.first[entries]
        if self.counts is not None:
            self.counts = self.counts[calls]
        used = np.unique(self.code)
        self.code = np.searchsorted(used, self.code)
        self.origins = [self.origins[k] for k in used]


def read_column(given: Sequence[Any], num_leaves: int) -> list[tuple[Entries, int]]:
    """The entries of each leaf of one argument, and what to add to their `first`."""
    if TupleArgument not in set(map(type, given)):
        entries = Entries(given)
        return [(entries, leaf) for leaf in range(num_leaves)]
    found = []
    for leaf in range(num_leaves):
        entries = Entries(
            [one.values[leaf] if type(one) is TupleArgument else one for one in given]
        )
        shifts = np.array([0 if type(one) is TupleArgument else leaf for one in given])
        counts = 1 if entries.counts is None else entries.counts
        entries.first = entries.first + np.repeat(shifts, counts)
        found.append((entries, 0))
    return found


class Pending:
    """Calls of one table that are to run in one phase.

    Attributes:
        rows:   (N,) their rows in the table, increasing.
        leaves: the entries of each vector and scalar of each argument, and what to add to their
            `first`; `memories`: those of each matrix.
    """

    def __init__(self, table: CallTable, phase: int, rows: Array) -> None:
        self.table = table
        self.phase = phase
        self.rows = rows
        self.columns: list[Entries] = []
        self.leaves: list[tuple[Entries, int]] = []
        whole = rows.size == len(table.calls)
        picked = rows.tolist()
        for column, form in zip(table.columns, table.forms, strict=True):
            given = column if whole else [column[row] for row in picked]
            self.leaves += read_column(given, form)
        self.columns = list(dict.fromkeys([entries for entries, _ in self.leaves]))
        found = list(zip(self.leaves, table.matrices, strict=True))
        self.memories = [entries for (entries, _), is_matrix in found if is_matrix]
        self.leaves = [leaf for leaf, is_matrix in found if not is_matrix]

    def keep(self, needed: Array) -> None:
        """Drop the calls that are not marked True."""
        self.rows = self.rows[needed]
        for entries in self.columns:
            entries.keep(needed)

    def nodes(self) -> list[Node]:
        """The ordinary nodes that the calls read."""
        found = [o for entries in self.columns for o in entries.origins if isinstance(o, Node)]
        return list(dict.fromkeys(found))

    @cached_property
    def by_memory(self) -> tuple[list[tuple[Node, ...]], Array] | None:
        """The memories of the calls, those with the most calls first, and the place of each call's.

        So the calls at one place of the longest sentences are, as a rule, those of the first
        memories: these are read where they lie.
        """
        if not self.memories:
            return None
        codes = np.stack([entries.code for entries in self.memories])
        distinct, which = np.unique(codes, axis=1, return_inverse=True)
        which = which.reshape(-1)
        order = np.argsort(-np.bincount(which), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        memories = [
            tuple([one.origins[k] for one, k in zip(self.memories, column, strict=True)])
            for column in distinct[:, order].T.tolist()
        ]
        return memories, place[which]

    @cached_property
    def reads_now(self) -> list[CallTable]:
        """The tables of calls that run in this very phase and that these read."""
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
        """The tables of the calls that these read, in whatever phase."""
        origins = [o for entries in self.columns for o in entries.origins]
        return list(dict.fromkeys([o for o in origins if isinstance(o, CallTable)]))

    def reads_inside(self, entries: Entries, origin: CallTable) -> Array:
        """(M,) which entries are calls of `origin` that run in this very phase."""
        chosen = entries.code == entries.origins.index(origin)
        rows = np.where(chosen, entries.row, 0)
        fresh = (origin.run_of[rows] == NOT_RUN) & (origin.ready[rows] == self.phase)
        inside: Array = chosen & fresh
        return inside

    def edges(self, other: Pending) -> tuple[Array, Array]:
        """Which of these calls read which of the other's, of those that run now: (M,) and (M,)."""
        readers, read = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for entries in self.columns:
            if other.table in entries.origins:
                inside = self.reads_inside(entries, other.table)
                readers.append(entries.call_of(self.rows.size)[inside])
                read.append(np.searchsorted(other.rows, entries.row[inside]))
        return np.concatenate(readers), np.concatenate(read)

    def reads_before(self, origin: CallTable) -> Array:
        """Rows of `origin` that these calls read, and that run in an earlier phase of this run."""
        found = []
        for entries in self.columns:
            if origin in entries.origins:
                rows = entries.row[entries.code == entries.origins.index(origin)]
                waits = (origin.run_of[rows] == NOT_RUN) & (origin.ready[rows] < self.phase)
                found.append(rows[waits])
        return np.concatenate(found)
