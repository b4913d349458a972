"""Loops in C over batches of calls: each batch gathers its rows, runs, and gives gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.kernels.c.gathers import GatherTables as GatherTables
from dynbatch.kernels.c.gathers import library
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import NativeTask, task

# Rows that run together, as in gathers.c.
ROWS = 96
# A thread is worth so many rows, and so many multiply-adds: 5 µs. It waits for others after each
# batch, not for the interpreter.
LEAST_ROWS = 8
WORTH_A_THREAD = 1 << 19


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
        functions = library.functions(dtype)
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
