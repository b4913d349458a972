"""`kernels.dropout` in C; its mask equals NumPy's bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("dropout.c")


def dropout(x: Array, streams: Array, probabilities: Array, offsets: Array, out: Array) -> Any:
    functions = _library.functions(x.dtype)
    if functions is None or not is_packed(x, out):
        return NotImplemented
    given = ((offsets, np.int64), (streams, np.uint32), (probabilities, np.float64))
    tables = [np.ascontiguousarray(table, dtype) for table, dtype in given]
    share_rows(functions.dropout, x.size, 1, *[address(array) for array in (*tables, x, out)])
    return None
