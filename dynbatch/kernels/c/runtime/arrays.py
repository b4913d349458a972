"""NumPy arrays as C sees them: an address, and a stride from row to row in elements."""

from __future__ import annotations

from dynbatch.backend import Array


def address(array: Array | None) -> int | None:
    """Address of the first element; None, which C sees as NULL, for no array."""
    return None if array is None else array.__array_interface__["data"][0]


def row_stride(array: Array) -> int:
    """Elements from a row of a matrix to the next."""
    return array.strides[0] // array.itemsize


def is_packed(*arrays: Array | None) -> bool:
    """Whether arrays of one dtype have their elements side by side; None is left out."""
    given = [array for array in arrays if array is not None]
    dtype = given[0].dtype
    return all([array.flags.c_contiguous and array.dtype == dtype for array in given])


def has_rows(*arrays: Array | None) -> bool:
    """Whether the elements of each row of arrays of one dtype lie side by side; None is left out.

    A vector is one row. Rows may lie anywhere: see `row_stride`.
    """
    given = [array for array in arrays if array is not None]
    dtype = given[0].dtype
    return all([array.dtype == dtype and _has_rows(array) for array in given])


def _has_rows(array: Array) -> bool:
    if array.flags.c_contiguous:
        return True
    size, strides = array.itemsize, array.strides
    side_by_side = array.shape[-1] < 2 or strides[-1] == size
    return array.ndim in (1, 2) and side_by_side and strides[0] >= 0 and not strides[0] % size
