"""`kernels.sparsemax` in C."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.softmax import in_segments

_library = Library("sparsemax.c")


def sparsemax(x: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "sparsemax", offsets, out, x)


def sparsemax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> Any:
    return in_segments(_library, "sparsemax_backward", offsets, out, dy, y)
