"""`kernels.segment` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("segment.c")


def reduce_segments(ufunc: np.ufunc, rows: Array, offsets: Array, out: Array, empty: float) -> Any:
    return _in_segments(ufunc.__name__, offsets, out.shape[1], rows.size, (rows, out), empty)


def combine_segments(
    ufunc: np.ufunc, rows: Array, values: Array, offsets: Array, out: Array
) -> Any:
    arrays = (rows, values, out)
    return _in_segments(ufunc.__name__, offsets, values.shape[1], rows.size, arrays)


def spread_segments(values: Array, offsets: Array, out: Array) -> Any:
    return _in_segments("spread", offsets, values.shape[1], out.size, (values, out))


def first_in_segments(rows: Array, values: Array, offsets: Array, out: Array) -> Any:
    if values.shape[1] == 1 or out.dtype != f"i{rows.itemsize}":
        return NotImplemented
    integers = out.view(rows.dtype)
    return _in_segments("first_in", offsets, values.shape[1], rows.size, (rows, values, integers))


def _in_segments(
    name: str, offsets: Array, width: int, size: int, arrays: tuple[Array, ...], *rest: float
) -> Any:
    functions = _library.functions(arrays[0].dtype)
    function = getattr(functions, name, None)
    if function is None or not is_packed(*arrays):
        return NotImplemented
    offsets = np.ascontiguousarray(offsets, np.int64)
    places = [address(array) for array in (offsets, *arrays)]
    count = offsets.size - 1
    share_rows(function, count, size // max(1, count), width, *places, *rest)
    return None
