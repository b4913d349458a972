"""Rows on a GPU by address: `place_of` an array's, `DeviceMatrix` where a loop makes no arrays."""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.backend import Array
from dynbatch.errors import ShapeError

Place = tuple[int, int]
"""The address of a row, and the elements from it to the next."""


class DeviceMatrix(NamedTuple):
    """Rows, or a range of columns of wider rows.

    array:   the device array that holds them.
    offset:  elements in it before the first.
    address: of the first element.
    stride:  elements from a row to the next.
    width:   columns.
    """

    array: Array
    offset: int
    address: int
    stride: int
    width: int

    def part(self, row: int, column: int, width: int) -> DeviceMatrix:
        first = row * self.stride + column
        address = self.address + first * self.array.itemsize
        return DeviceMatrix(self.array, self.offset + first, address, self.stride, width)

    def view(self, rows: int) -> Array:
        if self.stride == self.width:
            flat = self.array.reshape(-1)[self.offset : self.offset + rows * self.width]
            return flat.reshape(rows, self.width)
        first, column = divmod(self.offset, self.stride)
        return self.array[first : first + rows, column : column + self.width]


def matrix_of(array: Array) -> DeviceMatrix:
    """A whole contiguous (rows, width) device array."""
    return DeviceMatrix(array, 0, array.data.ptr, array.shape[1], array.shape[1])  # type: ignore[attr-defined]


def place_of(array: Array) -> Place:
    """The place of an array's rows, each of which is contiguous.

    Raises:
        ShapeError: they are not.
    """
    return array.data.ptr, row_stride(array)  # type: ignore[attr-defined]


def row_stride(array: Array) -> int:
    """Elements from a row of a matrix to the next.

    Raises:
        ShapeError: a row is not contiguous.
    """
    is_wide = array.ndim > 1 and array.size and array.shape[-1] > 1
    if is_wide and array.strides[-1] != array.itemsize:
        raise ShapeError(f"rows of an array {array.shape} with strides {array.strides}")
    return int(array.strides[0] // array.itemsize)
