"""`kernels.softmax` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("softmax.c")


def softmax(x: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "softmax", offsets, out, x)


def softmax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "softmax_backward", offsets, out, dy, y)


def log_softmax(x: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "log_softmax", offsets, out, x)


def log_softmax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "log_softmax_backward", offsets, out, dy, y)


def in_segments(library: Library, name: str, offsets: Array, out: Array, *given: Array) -> Any:
    """Run a kernel of `walk.h` on all segments of rows."""
    functions = library.functions(out.dtype)
    if functions is None or not is_packed(out, *given):
        return NotImplemented
    offsets = np.ascontiguousarray(offsets, np.int64)
    count, width = offsets.size - 1, out.shape[1]
    places = [address(array) for array in (offsets, *given, out)]
    share_rows(getattr(functions, name), count, out.size // max(1, count), width, *places)
    return None
