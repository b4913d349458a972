"""`kernels.positions` in C: rotary positions in one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share
from dynbatch.kernels.positions import Angles, longest
from dynbatch.kernels.runtime import parallel

# Elements that take a thread about 40 µs.
WORTH_A_THREAD = 1 << 17

_library = Library("positions.c")


def rotary(
    x: Array, offsets: Array, starts: Array, angles: Angles, heads: int, is_interleaved: bool,
    is_inverse: bool, out: Array,
) -> Any:  # fmt: skip
    functions = _library.functions(x.dtype)
    if functions is None or not has_rows(x, out):
        return NotImplemented
    rows, width = x.shape
    turns = angles.table(longest(offsets, starts), x.dtype)
    tables = [np.ascontiguousarray(table, np.int64) for table in (offsets, starts)]
    args = (
        *[address(table) for table in (*tables, turns)], turns.shape[2],
        -1.0 if is_inverse else 1.0, address(x), row_stride(x), heads, width // heads,
        angles.width, is_interleaved, address(out), row_stride(out),
    )  # fmt: skip
    least = -(-WORTH_A_THREAD // max(1, width))
    spans = parallel.shards(rows, least)
    share(functions.rotary, [(*span, _run_of(span[0], offsets), *args) for span in spans])
    return None


def _run_of(row: int, offsets: Array) -> int:
    return int(offsets.searchsorted(row, "right")) - 1
