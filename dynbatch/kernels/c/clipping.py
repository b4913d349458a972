"""`kernels.clipping` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows

# Elements that are summed in float; NumPy sums one block sooner. Threads share blocks, and so
# do not change the order of a sum.
BLOCK = 8192
# Elements that take a thread about 40 µs.
WORTH_A_THREAD = 1 << 19

_library = Library("clipping.c")


def sum_squares(values: Array) -> Any:
    functions = _library.functions(values.dtype)
    if functions is None or values.size <= BLOCK or not is_packed(values):
        return NotImplemented
    sums = np.empty(-(-values.size // BLOCK))
    args = (BLOCK, values.size, address(values), address(sums))
    share_rows(functions.sum_squares, sums.size, BLOCK, *args, least=WORTH_A_THREAD)
    return float(sum(sums.tolist()))
