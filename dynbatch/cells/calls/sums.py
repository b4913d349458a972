"""`TreeSums`: the sums of what a tree's nodes take over from their children, told by numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.arguments import NodeArgument
from dynbatch.cells.calls.column import Column
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallTable


class TreeSums:
    """Sums of consecutive calls of one table, an origin of values as in `CallGraph`.

    Attributes:
        edges: the table.
        spans: of each sum `first << ROW_BITS | count`: its first call, and how many it has. None
            are zeros, and of one call it is that call's result.
    """

    def __init__(self, edges: CallTable) -> None:
        self.edges = edges
        self.spans = Column()

    def enter(self, first: int, counts: Array) -> None:
        """Enter sums of so many calls each, one after the other from a first one."""
        self.spans.enter((first + np.cumsum(counts) - counts) << ROW_BITS | counts)

    def rows(self, number: int) -> range:
        """The calls of a sum."""
        span: int = self.spans.at(number)
        first = span >> ROW_BITS
        return range(first, first + (span & ROW))

    def indices_of(self, number: int) -> list[int]:
        """The indices of the nodes that a sum's calls are, or will be."""
        return [*map(self.edges.index_of, self.rows(number))]

    def __getitem__(self, number: int) -> Any:
        """A sum as an argument of a call."""
        edges = self.edges
        members: list[Any] = [*map(edges.call, self.rows(number))]
        if len(members) > 1:
            return SumArgument(members, edges.form)
        return members[0] if members else NodeArgument(None, edges.form_id)

    def terms(self, numbers: Array) -> tuple[Array, Array, Array]:
        """The first term of each sum, by the number of its origin and row, and how many it has."""
        spans = self.spans.numbers(int)[numbers]
        counts, number = spans & ROW, self.edges.number
        is_sum = counts > 0
        return np.where(is_sum, number, 0), (spans >> ROW_BITS) * is_sum, np.maximum(counts, 1)
