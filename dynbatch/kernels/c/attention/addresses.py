"""`kernels.attention.addresses` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows

_library = Library("attention/addresses.c")


def read_rows(addresses: Array, out: Array) -> Any:
    return _run("read_rows", out, addresses)


def write_rows(rows: Array, addresses: Array) -> Any:
    return _run("write_rows", rows, addresses)


def _run(name: str, rows: Array, addresses: Array) -> Any:
    functions = _library.functions(rows.dtype)
    if functions is None or not has_rows(rows):
        return NotImplemented
    count, width = rows.shape
    addresses = np.ascontiguousarray(addresses, np.int64)
    share_rows(
        getattr(functions, name), count, width, width, address(rows), row_stride(rows),
        address(addresses),
    )  # fmt: skip
    return None
