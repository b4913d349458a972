"""NumPy arrays as C sees them: an address, and a stride from row to row in elements."""

from __future__ import annotations

import ctypes

import numpy as np

from dynbatch.backend import Array


def address(array: Array | None) -> int | None:
    """Address of the first element; None, which C sees as NULL, for no array."""
    if array is None or not _IS_AFTER_HEADER:
        return None if array is None else _address(array)
    return _pointer_at(id(array) + _HEADER).value


def _address(array: Array) -> int | None:
    address: int = array.__array_interface__["data"][0]
    return address


# NumPy's C interface keeps the address first in an array, behind Python's header. Read from there
# it takes 0.1 µs, not 1; a kernel of a small batch takes 2, and has five arrays.
_HEADER = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address
_probe = np.zeros(2)[1:]
_IS_AFTER_HEADER = _pointer_at(id(_probe) + _HEADER).value == _address(_probe)

ADDRESS = f"pointer_at(id({{0}}) + {_HEADER}).value" if _IS_AFTER_HEADER else "address({0})"
"""The address of an array in text, over `address_names`."""
address_names = {"pointer_at": _pointer_at, "address": address}


def row_stride(array: Array) -> int:
    """Elements from a row of a matrix to the next."""
    return array.strides[0] // array.itemsize


def is_packed(*arrays: Array | None) -> bool:
    """Whether arrays of one dtype have their elements side by side; None is left out."""
    present = [array for array in arrays if array is not None]
    dtype = present[0].dtype
    return all([array.flags.c_contiguous and array.dtype == dtype for array in present])


def has_rows(*arrays: Array | None) -> bool:
    """Whether the elements of each row of arrays of one dtype lie side by side; None is left out.

    A vector is one row. Rows may lie anywhere: see `row_stride`.
    """
    present = [array for array in arrays if array is not None]
    dtype = present[0].dtype
    return all([array.dtype == dtype and _has_rows(array) for array in present])


def _has_rows(array: Array) -> bool:
    if array.flags.c_contiguous:
        return True
    size, strides = array.itemsize, array.strides
    side_by_side = array.shape[-1] < 2 or strides[-1] == size
    return array.ndim in (1, 2) and side_by_side and strides[0] >= 0 and not strides[0] % size
