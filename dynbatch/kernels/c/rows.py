"""`kernels.rows` in C. Threads share columns, so each sum is in order of position."""

from __future__ import annotations

from ctypes import addressof, c_int64
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows

# Elements up to which NumPy adds rows that are distinct sooner, with the same bits.
WORTH_C = 1 << 12
# Columns that a thread is given at least, as in rows.c: a line of the cache, in float32.
COLUMNS = 16
# Possible ids for each id given, up to which a bitmap of them is cheap.
SPARSEST = 4096

_library = Library("rows.c")


def sum_rows_by_id(ids: Array, rows: Array) -> Any:
    functions = _library.functions(rows.dtype)
    if functions is None or not ids.size or not has_rows(rows):
        return NotImplemented
    ids = np.ascontiguousarray(ids, np.int64)
    num_words = (int(ids.max()) >> 6) + 1
    if num_words * 64 > SPARSEST * ids.size:
        return NotImplemented
    count, (seen, before) = c_int64(), np.empty((2, num_words), np.int64)
    distinct, ranks = np.empty((2, ids.size), np.int64)
    tables = [address(array) for array in (seen, before, distinct)]
    functions.rank(ids.size, address(ids), num_words, *tables, addressof(count), address(ranks))
    if count.value < 0:
        return NotImplemented
    sums = np.empty((count.value, rows.shape[1]), rows.dtype)
    _by_columns(functions.sum_rows, rows, ranks, sums)
    return distinct[: count.value].copy(), sums


def scatter_rows(rows: Array, index: Array, out: Array) -> Any:
    functions = _library.functions(out.dtype)
    if functions is None:
        return NotImplemented
    return _by_columns(functions.sum_rows, rows, index, out)


def add_rows(rows: Array, index: Array, out: Array) -> Any:
    return add_rows_at(rows, index, out, unique=True)


def add_rows_at(rows: Array, positions: Array, out: Array, unique: bool = False) -> Any:
    functions = _library.functions(out.dtype)
    if functions is None or (unique and rows.size < WORTH_C):
        return NotImplemented
    return _by_columns(functions.add_rows, rows, positions, out)


def _by_columns(function: Any, rows: Array, index: Array, out: Array) -> Any:
    """Run a function over all columns. An index that is not a row of `out` is left to NumPy."""
    if not has_rows(rows, out):
        return NotImplemented
    index, taken, width = np.ascontiguousarray(index, np.int64), c_int64(1), out.shape[1]
    share_rows(
        function, -(-width // COLUMNS), max(len(index), len(out)) * COLUMNS, width, index.size,
        address(index), address(rows), row_stride(rows), len(out), address(out), row_stride(out),
        addressof(taken),
    )  # fmt: skip
    return None if taken.value else NotImplemented
