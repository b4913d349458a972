"""Filling, copying, repeating: the twins of `kernels/arrays.py`, launching `arrays.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.queue import launch, queue

Array = np.ndarray[Any, np.dtype[Any]]

THREADS = 256
TILE = 4 * THREADS  # elements of a block: EACH of common.cuh for every thread


def fill(out: Any, number: float) -> None:
    """out = number, everywhere."""
    _over_elements(out, "fill", (out, number))


def copy(x: Any, out: Any) -> None:
    """out = x, of out's shape or of its last dimensions.

    Either may be a slice of columns where the shapes are equal. Integers as large as out's elements
    are converted, if both arrays are contiguous.

    Raises:
        DtypeError: another dtype than out's.
        ShapeError: shapes or strides are not as described.
    """
    if x.shape != out.shape[max(0, out.ndim - x.ndim) :]:
        raise ShapeError(f"copy: an array {x.shape} into one {out.shape}")
    is_contiguous = x.flags.c_contiguous and out.flags.c_contiguous
    if x.dtype == f"i{out.itemsize}" and is_contiguous and x.size == out.size:
        _over_elements(out, "copy_integers", (x, out))
    elif x.dtype != out.dtype:
        raise DtypeError(f"copy: an array of {x.dtype} into one of {out.dtype}")
    elif x.size != out.size:
        _copy_rows(x, 0, out, x.size, x.size)
    elif is_contiguous:
        _over_elements(out, "copy", (x, out))
    else:
        _copy_rows(x, _row_stride(x), out, _row_stride(out), out.size // len(out))


def _copy_rows(x: Any, x_stride: int, out: Any, out_stride: int, width: int) -> None:
    if not x_stride and not (x.flags.c_contiguous and out.flags.c_contiguous):
        raise ShapeError("copy: only an array without gaps is repeated, into one without gaps")
    queue().keep(x, out)
    args = (x.data.ptr, out.data.ptr, x_stride, out_stride, width)
    _over_elements(out, "copy_rows", args)


def _row_stride(array: Any) -> int:
    """From row to row, in elements; a row is contiguous."""
    if not array[:1].flags.c_contiguous:
        raise ShapeError(f"copy: rows of an array {array.shape} with strides {array.strides}")
    return int(array.strides[0] // array.itemsize)


def accumulate(x: Any, out: Any) -> None:
    """out += x, of one shape."""
    _over_elements(out, "accumulate", (x, out))


def add_bias(rows: Any, bias: Any) -> None:
    """rows[n] += bias for every row, in place."""
    _over_elements(rows, "add_bias", (rows, bias, rows.shape[1]))


def upload(out: Any, arrays: Sequence[Array]) -> None:
    """out = the host's arrays, one after the other; they come up with the tables of the run."""
    table = np.concatenate([array.reshape(-1) for array in arrays])
    _over_elements(out, "copy", (table, out))


def download(array: Any) -> Array:
    """A copy on the host. It starts all that waits in the queue, and waits until it is done."""
    queue().flush()
    copied: Array = array.get()
    return copied


def _over_elements(out: Any, name: str, args: tuple[Any, ...]) -> None:
    launch(out, name, (-(-out.size // TILE),), (THREADS,), (*args, out.size))
