"""`kernels.kmax_pool` in C: the k largest so far of as many columns as a vector has lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("kmax_pool.c")
MOST = 64  # as in kmax_pool.c


def kmax_pool(x: Array, offsets: Array, k: int, out: Array, place: Array | None) -> Any:
    return _in_segments("kmax_pool", k, offsets, len(x), (x, out), place)


def kmax_pool_backward(dy: Array, offsets: Array, k: int, place: Array, out: Array) -> Any:
    return _in_segments("kmax_pool_backward", k, offsets, len(out), (dy, out), place)


def _in_segments(
    name: str, k: int, offsets: Array, rows: int, arrays: tuple[Array, Array], place: Array | None
) -> Any:
    source, out = arrays
    functions = _library.functions(out.dtype)
    if functions is None or k > MOST:
        return NotImplemented
    if place is not None and place.dtype != f"i{out.itemsize}":
        return NotImplemented
    places = None if place is None else place.view(out.dtype)
    if not is_packed(out, source, places):
        return NotImplemented
    offsets = np.ascontiguousarray(offsets, np.int64)
    count, width = offsets.size - 1, out.shape[1]
    given = (source, out, places) if name == "kmax_pool" else (source, places, out)
    share_rows(
        getattr(functions, name), count, rows * width // max(1, count), width, k, address(offsets),
        *[address(array) for array in given], alive=(offsets,),
    )  # fmt: skip
    return None
