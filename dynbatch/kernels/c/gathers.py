"""`kernels.gathers` in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.gathers import BoundTable, GatherTable
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import WORTH_A_THREAD, share

library = Library("gathers.c")


def gather(sources: Sequence[Array], table: GatherTable, first: int, end: int, out: Array) -> Any:
    spans = parallel.shards(end - first, -(-WORTH_A_THREAD // max(1, out.shape[1])))
    rows = [(first + low, first + high) for low, high in spans]
    return _run("gather", rows, BoundTable(out, table, sources))


def give_back(
    dy: Array, table: GatherTable, first: int, end: int, gradients: Sequence[Array | None]
) -> Any:
    """Give rows back, each thread the columns of its own."""
    parts = len(parallel.shards(dy.shape[1], -(-WORTH_A_THREAD // max(1, end - first))))
    columns = [(first, end, part, parts) for part in range(parts)]
    return _run("give_back", columns, BoundTable(dy, table, gradients))


def _run(name: str, parts: Sequence[tuple[int, ...]], bound: BoundTable) -> Any:
    """Run each part, its numbers before the table."""
    functions = library.functions(bound.array.dtype)
    if functions is None or not has_rows(bound.array, *bound.sources):
        return NotImplemented
    tables = GatherTables([bound])
    share(getattr(functions, name), [(*part, tables.address) for part in parts], [tables])
    return None


class GatherTables:
    """Tables as C reads them: see `gather_table` of gathers.c.

    Args:
        each: the tables.
    """

    def __init__(self, each: Sequence[BoundTable]) -> None:
        self._alive: list[Array | None] = []
        numbers: list[int] = []
        for array, table, sources, _ in each:
            places = np.array(
                [(0, 0) if x is None else (address(x), row_stride(x)) for x in sources], np.int64
            )
            tables = [_packed(x) for x in (*table, places)]
            numbers += [address(array) or 0, row_stride(array), array.shape[1]]
            numbers += [address(x) or 0 for x in tables]
            self._alive += tables
        self._numbers = np.array(numbers, np.int64)
        self.count = len(each)
        self.address = address(self._numbers) or 0


def _packed(table: Array | None) -> Array | None:
    return None if table is None else np.ascontiguousarray(table, np.int64)
