"""Allocates and slices the arrays of generated code."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.compiler.buffers import Columns
from dynbatch.indexing import repeat
from dynbatch.ragged import Ragged

CACHE_LINE = 64

Arrays = dict[str, Any]
"""What the passes of a loop get by name: arrays, flags, operators with own kernels."""

Rooms = dict[str, tuple[int, int]]
"""Rows and width of arrays by name, in the order in which they are taken."""

Step = tuple[int, int, int, int]
"""A loop's step by its rows: the first, the one behind the last, how many, and the first row of the
step before, or -1."""


class Scratch:
    """Hands out parts of one planned array, one after the other."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._used = 0
        self.dtype = array.dtype

    def take(self, rows: int, width: int) -> Array:
        """An uninitialised (rows, width) part."""
        start = self._used
        self._used += rows * width
        return self._array[start : self._used].reshape(rows, width)

    def take_all(self, rooms: Rooms) -> Arrays:
        return {name: self.take(*room) for name, room in rooms.items()}


def elements_of(rooms: Rooms) -> int:
    """Elements of scratch that arrays take."""
    return sum([rows * width for rows, width in rooms.values()])


def panel_elements(inner: int, width: int, dtype: DType) -> int:
    """Room of a weight (width, inner) packed for products: whole cache lines of columns."""
    line = CACHE_LINE // dtype.itemsize
    return inner * (-(-width // line) * line)


def columns_of(arrays: Arrays, columns: Columns) -> Array:
    buffer, column, width = columns
    rows: Array = arrays[buffer.name]
    return rows[:, column : column + width]


def memory_rows(memory: Ragged, sentences: Array) -> tuple[Array, Array]:
    """Rows of a memory in another order of sentences, perhaps some twice, and their lengths."""
    offsets = memory.offsets
    lengths = np.diff(offsets)[sentences]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    within = np.arange(total) - repeat(ends - lengths, lengths)
    return repeat(offsets[:-1][sentences], lengths) + within, lengths
