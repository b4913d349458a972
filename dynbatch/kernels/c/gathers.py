"""`kernels.gathers` in C, and passes of loops over batches of calls, each after its gathers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.kernels import gathers as kernels
from dynbatch.kernels.c.runtime.arrays import address, has_rows, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.gathers import GatherTable
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import WORTH_A_THREAD as WORTH_MOVING
from dynbatch.kernels.runtime.tasks import NativeTask, Task, Tasks, task

# Rows that run together, as in gathers.c.
ROWS = 96
# A thread is worth so many rows, and so many multiply-adds: 5 µs. It waits for others after each
# batch, not for the interpreter.
LEAST_ROWS = 8
WORTH_A_THREAD = 1 << 19

_library = Library("gathers.c")


def gather(sources: Sequence[Array], table: GatherTable, first: int, end: int, out: Array) -> Any:
    return _run(gather_tasks((out, table, sources), first, end))


def give_back(
    dy: Array, table: GatherTable, first: int, end: int, gradients: Sequence[Array | None]
) -> Any:
    return _run(give_back_tasks((dy, table, gradients), first, end))


def _run(tasks: Sequence[Task]) -> Any:
    if any(map(callable, tasks)):
        return NotImplemented
    todo = Tasks()
    todo.then(*[[each] for each in tasks])
    todo.run()
    return None


BoundTable = tuple[Array, GatherTable, Sequence[Any]]
"""The array that a table fills, or whose rows it gives back; the table; its sources, or None."""


def gather_tasks(bound: BoundTable, first: int, end: int) -> list[Task]:
    """The tasks of `gather`, which may run at the same time."""
    out, table, sources = bound
    spans = parallel.shards(end - first, -(-WORTH_MOVING // max(1, out.shape[1])))
    rows = [(first + low, first + high) for low, high in spans]
    return _tasks("gather", rows, bound) or [
        partial(kernels.gather, sources, table, first, end, out)
    ]


def give_back_tasks(bound: BoundTable, first: int, end: int) -> list[Task]:
    """The tasks of `give_back`, which may run at the same time: each has columns of its own."""
    dy, table, gradients = bound
    parts = len(parallel.shards(dy.shape[1], -(-WORTH_MOVING // max(1, end - first))))
    each = [(first, end, part, parts) for part in range(parts)]
    return _tasks("give_back", each, bound) or [
        partial(kernels.give_back, dy, table, first, end, gradients)
    ]


def _tasks(name: str, parts: Sequence[tuple[int, ...]], bound: BoundTable) -> list[Task]:
    """A task for each part, its numbers before the table; none where no C is used."""
    array, _, sources = bound
    functions = _library.functions(array.dtype)
    if functions is None or not has_rows(array, *sources):
        return []
    tables = GatherTables([bound])
    return [task(getattr(functions, name), (*part, tables.address), tables) for part in parts]


class GatherTables:
    """Tables as C reads them: see `gather_table` of gathers.c.

    Args:
        each: the tables.
    """

    def __init__(self, each: Sequence[BoundTable]) -> None:
        self._alive: list[Array | None] = []
        numbers: list[int] = []
        for array, table, sources in each:
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


class BoundBatches(NamedTuple):
    """One pass of a loop in C on its arrays, for batches of calls.

    run, places, product: the pass's address, the numbers by which it finds its arrays, a row for
        each thread that has temporary values of its own, and the address of the function that it
        multiplies with.
    gathers, returns: what is gathered before a batch, and given back after it.
    elements: multiply-adds of a row.
    ahead: whether the maps of streams are made too.
    """

    run: int
    places: Array
    product: int
    gathers: GatherTables
    returns: GatherTables
    elements: int
    ahead: bool


class BatchPass:
    """One pass of several loops in C over batches of calls.

    Args:
        loops: None for those that are not in C.
    """

    def __init__(self, loops: Sequence[BoundBatches | None]) -> None:
        self._loops = loops
        self._numbers = np.array(
            [
                [0] * 11 if loop is None else [
                    loop.run, address(loop.places), loop.product, loop.ahead,
                    loop.gathers.address, loop.gathers.count,
                    loop.returns.address, loop.returns.count,
                    *loop.places.shape, least_rows(loop.elements),
                ]
                for loop in loops
            ],
            np.int64,
        )  # fmt: skip

    def tasks(self, batches: Sequence[tuple[int, int, int]], dtype: DType) -> list[NativeTask]:
        """Tasks that run batches, (loop, first row, end row) each, in order: one per thread."""
        functions = _library.functions(dtype)
        assert functions is not None, "loops in C need C to gather for them"
        rows, progress = np.array(batches, np.int64), np.zeros(2, np.int64)
        sizes = rows[:, 2] - rows[:, 1]
        worth_it = (sizes >= 2 * self._numbers[rows[:, 0], -1]).any()
        threads = parallel.available() if worth_it else 1
        places = len(rows), address(rows), address(self._numbers), address(progress)
        each = [(k, threads, *places) for k in range(threads)]
        return [task(functions.run_batches, one, self, rows, progress) for one in each]


def least_rows(elements: int) -> int:
    """Rows of so many multiply-adds that are worth a thread."""
    return max(LEAST_ROWS, WORTH_A_THREAD // max(1, elements))
