"""`kernels.levels` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library

_library = Library("levels.c")
_SCALAR = np.dtype(np.float32)  # no function of it reads one


def levels(count: int, readers: Array, read: Array) -> Any:
    functions = _library.functions(_SCALAR)
    if functions is None:
        return NotImplemented
    depth, waiting = np.zeros((2, count), np.int64)
    begins, queue = np.empty(count + 1, np.int64), np.empty(count, np.int64)
    by_read = np.empty_like(readers)
    functions.levels(
        count, readers.size, address(readers), address(read), address(depth), address(waiting),
        address(begins), address(queue), address(by_read),
    )  # fmt: skip
    return depth
