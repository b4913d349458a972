"""`kernels.decimals` in C, which leaves rare forms of numbers to Python. Threads share lines."""

from __future__ import annotations

from ctypes import addressof, c_int64
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.decimals import read_each
from dynbatch.kernels.runtime.tasks import share_rows

_library = Library("decimals.c")
_SCALAR = np.dtype(np.float32)  # that of all that is read


def split_lines(text: Array, numbers: int) -> Any:
    functions = _library.functions(_SCALAR)
    if functions is None:
        return NotImplemented
    count = c_int64()
    functions.count_lines(text.size, address(text), addressof(count))
    spans = np.empty((3, count.value), np.int64)
    functions.split_lines(text.size, address(text), numbers, count.value, address(spans))
    return spans


def read_rows(text: Array, spans: Array, rows: Array, out: Array) -> Any:
    functions = _library.functions(_SCALAR)
    if functions is None:
        return NotImplemented
    left = np.empty(rows.size, np.int8)
    share_rows(
        functions.read_rows, rows.size, -(-text.size // max(1, rows.size)), rows.size, out.shape[1],
        address(text), address(spans), address(rows), address(out), address(left),
    )  # fmt: skip
    return read_each(text, spans, rows, out, np.flatnonzero(left))
