"""`kernels.arrays` in C."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.elementwise import share
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows

# Elements that a thread adds in about 40 µs.
WORTH_A_THREAD = 1 << 19

_library = Library("arrays.c")


def fill(out: Array, number: float) -> Any:
    return share("set", out, number)


def sum_rows(rows: Array, out: Array, later: bool = False) -> Any:
    functions = _library.functions(out.dtype)
    if functions is None or not (has_rows(out, rows) and is_packed(out)):
        return NotImplemented
    count, width = rows.shape
    share_rows(
        functions.sum_rows, width, count, count, address(rows), row_stride(rows), address(out),
        least=WORTH_A_THREAD,
    )  # fmt: skip
    return None
