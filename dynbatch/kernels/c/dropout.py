"""`kernels.dropout` in C; its mask equals NumPy's bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel

# Elements that take a thread about 40 µs.
WORTH_A_THREAD = 1 << 17

_library = Library("dropout.c")


def dropout(x: Array, streams: Array, probabilities: Array, offsets: Array, out: Array) -> Any:
    functions = _library.functions(x.dtype)
    if functions is None or not is_packed(x, out):
        return NotImplemented
    given = ((offsets, np.int64), (streams, np.uint32), (probabilities, np.float64))
    tables = [np.ascontiguousarray(table, dtype) for table, dtype in given]
    places = [address(array) for array in (*tables, x, out)]
    parallel.run(
        [
            partial(functions.dropout, first, last, _segment_of(first, offsets), *places)
            for first, last in parallel.shards(x.size, WORTH_A_THREAD)
        ]
    )
    return None


def _segment_of(element: int, offsets: Array) -> int:
    return int(offsets.searchsorted(element, "right")) - 1
