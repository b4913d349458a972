"""Allocates and slices the arrays of generated code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dynbatch.backend import DType
from dynbatch.compiler.buffers import Columns, ProgramBuffer
from dynbatch.compiler.ir import Op, WeightRows
from dynbatch.kernels import blas
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged

# Rows of a weight transposed at once.
TRANSPOSED_ROWS = 64
CACHE_LINE = 64

Arrays = dict[str, Any]
"""What the passes of a loop get by name: arrays, flags, operators with own kernels."""

Portion = tuple[int, slice, WeightRows, int]


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


def laid_out(rows: Array, buffer: ProgramBuffer, in_c: bool) -> Array:
    """An array (N, width) as a loop has it: in planes for NumPy, whose calls want whole arrays."""
    if in_c or not buffer.plane:
        return rows
    return rows.reshape(buffer.planes, rows.shape[0], buffer.plane)


def rows_of(array: Array, span: slice) -> Array:
    """Some rows of an array, perhaps in planes."""
    return array[span] if array.ndim == 2 else array[:, span]


def temporary(rows: int, buffer: ProgramBuffer, scratch: Scratch, in_c: bool) -> Array:
    """Room for a step of so many rows."""
    return laid_out(scratch.take(rows, buffer.width), buffer, in_c)


def write_transposed(piece: WeightRows, wide: Array, plane: int) -> None:
    """Write a piece's weight, transposed, into (planes, K, plane)."""
    for start in range(piece.column, piece.column + piece.width, plane):
        width = min(plane, piece.column + piece.width - start)
        first = piece.first + start - piece.column
        column = start % plane
        for low in range(0, width, TRANSPOSED_ROWS):  # narrow strips stay in the cache
            high = min(width, low + TRANSPOSED_ROWS)
            wide[start // plane][:, column + low : column + high] = piece.weight.value[
                first + low : first + high
            ].T


def planes_of(array: Array) -> Array:
    """An array as planes: (P, N, width), P = 1 where it has none."""
    return array if array.ndim == 3 else array[None]


def portions(op: Op, plane: int) -> Iterator[Portion]:
    """The column ranges of a wide map that lie in one plane and one weight.

    Yields:
        plane, columns there, the piece, and the first row of its weight.
    """
    for piece in op.pieces:
        start, stop = piece.column, piece.column + piece.width
        while start < stop:
            number, column = divmod(start, plane)
            width = min(plane - column, stop - start)
            yield number, slice(column, column + width), piece, piece.first + start - piece.column
            start += width


def panel_elements(inner: int, width: int, dtype: DType) -> int:
    """Room of a weight (width, inner) packed for products: whole cache lines of columns."""
    line = CACHE_LINE // dtype.itemsize
    return inner * (-(-width // line) * line)


def stream_map(x: Array, weights: Array | Sequence[Portion], out: Array) -> None:
    """out = x W, all rows at once, for x (N, K), out (N, O) or in planes.

    Args:
        weights: W packed like `out`, or the portions of weights Wᵀ as they lie.
    """
    planes = planes_of(out)
    if isinstance(weights, np.ndarray):
        blas.matmul_planes(x, planes_of(weights), planes)
        return
    for plane, columns, piece, first in weights:
        part = planes[plane][:, columns]
        blas.matmul_rows(x, piece.weight.value[first : first + part.shape[1]].T, part)


def columns_of(arrays: dict[str, Array], columns: Columns) -> Array:
    """The rows of a value, in planes where it lies in several."""
    buffer, column, width = columns
    rows = arrays[buffer.name]
    if rows.ndim > 2 and width > buffer.plane:
        return rows[column // buffer.plane : (column + width) // buffer.plane]
    if rows.ndim > 2:
        rows = rows[column // buffer.plane]
        column %= buffer.plane
    return rows if width == rows.shape[1] else rows[:, column : column + width]


def memory_rows(memory: Ragged, sentences: Array) -> tuple[Array, Array]:
    """Rows of a memory in another order of sentences, perhaps some twice, and their lengths."""
    offsets = memory.offsets
    lengths = np.diff(offsets)[sentences]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    within = np.arange(total) - np.repeat(ends - lengths, lengths)
    return np.repeat(offsets[:-1][sentences], lengths) + within, lengths
