"""`Column`: one argument of the calls of a table, call after call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.backend import Array


class Column(list[Any]):
    """One argument of each call: a value, its number, or None where an array has the numbers.

    Attributes:
        entered: these arrays, each with the row of its first number; see `table.CallGraph`.
    """

    __slots__ = ("entered",)

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[tuple[int, Array]] = []

    def enter(self, numbers: Array) -> None:
        """Append what some calls are given, without a Python object for each."""
        first = len(self)
        self.extend([None] * numbers.size)
        self.entered.append((first, numbers))  # at last: see `CallTable.require_whole`

    def at(self, row: int) -> Any:
        """The argument of the call in a row."""
        value = self[row]
        if value is None:
            first, numbers = self.entered[bisect_right(self.entered, row, key=_first) - 1]
            value = int(numbers[row - first])
        return value

    def replace(self, values: list[Any]) -> None:
        """Hold these values alone."""
        self[:] = values
        self.entered.clear()

    def numbers(self, number_of: Callable[[Any], int]) -> Array:
        """All numbers; those of values that are not in an array by a function."""
        runs, end = list[Array](), 0
        for first, entered in [*self.entered, (len(self), np.empty(0, np.int64))]:
            if end < first:
                runs.append(np.array([*map(number_of, self[end:first])], np.int64))
            runs.append(entered)
            end = first + entered.size
        return np.concatenate(runs)

    @property
    def is_entered(self) -> bool:
        """Whether arrays have all of its numbers."""
        return bool(self.entered) and sum([some.size for _, some in self.entered]) == len(self)


def _first(entered: tuple[int, Array]) -> int:
    return entered[0]
