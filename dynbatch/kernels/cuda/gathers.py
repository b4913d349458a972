"""Launches of `gathers.cu`: sums of rows of several arrays, by tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.matrices import place_of
from dynbatch.kernels.cuda.runtime.packing import PerStep
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.gathers import BoundTable, GatherTable, readers_table

FIELDS, ROWS_OF_BLOCK, THREADS = 10, 8, 256  # as in gathers.cu
TILE = 32  # columns of a warp


class SumLaunches:
    """Launches of `sum_terms` for several arrays at once.

    Args:
        sums: their addresses must stay valid until the queue is flushed.
    """

    def __init__(self, queue: Queue, dtype: DTypeLike, sums: Sequence[BoundTable]) -> None:
        self._queue = queue
        self._dtype = np.dtype(dtype)
        self._terms: list[Array] = [np.zeros(1, np.int64)]  # a table has an element at least
        self._used = 1
        self._known: dict[int, int] = {}
        sums = [each for each in sums if each.array.size]
        base = place_of(sums[0].array)[0] if sums else 0
        numbers: list[int] = []
        places: list[int] = []
        self._tiles = 0
        for array, table, sources, adds in sums:
            (height, width), (start, stride) = array.shape, place_of(array)
            rows, of, starts = table or (None, None, None)
            numbers += [self._tiles, width, self._distance(start, base), stride, height]
            numbers += [self._enter(rows), self._enter(of), self._enter(starts)]
            numbers += [len(sums) * FIELDS + len(places), adds]
            for source in sources:
                start, stride = place_of(source)
                places += [self._distance(start, base), stride]
            self._tiles += -(-width // TILE)
        self._rows = max([len(each.array) for each in sums], default=0)
        tables = np.array([*numbers, *places], np.int64)
        self._args = base, tables, np.concatenate(self._terms)
        self._count = len(sums)

    def _distance(self, address: int, base: int) -> int:
        return (address - base) // self._dtype.itemsize

    def _enter(self, table: Array | None) -> int:
        """The position of a table among the terms; -1 for none."""
        if table is None:
            return -1
        known = self._known.get(id(table))
        if known is None:
            known = self._known[id(table)] = self._used
            self._terms.append(table)
            self._used += table.size
        return known

    def __bool__(self) -> bool:
        return bool(self._count)

    def launch(self) -> None:
        steps = np.array([[0, self._rows, -1]], np.int32)
        grid = (self._blocks(self._rows),)
        args = (*self._args, steps, self._count, self._tiles, 0)
        self._queue.launch(self._dtype, "sum_terms", grid, (THREADS,), args)

    def add_to(self, loop: PreparedLoop, steps: Array, order: Array, where: Array) -> None:
        """Add a launch to each step of a loop, for the rows of one of `steps`.

        Args:
            steps: (T, 3) its first row and number of rows, and what is not read.
            order: number of the one for each step of the loop; `where`: whether it has any.
        """
        blocks = self._blocks(steps[order, 1].astype(np.int64))
        args = (*self._args, steps, self._count, self._tiles, PerStep(order))
        loop.kernel("sum_terms", (blocks,), (THREADS,), args, where=where)

    def _blocks(self, rows: Any) -> Any:
        return -(-rows // ROWS_OF_BLOCK) * self._tiles


def gather(sources: Sequence[Array], table: GatherTable, first: int, end: int, out: Array) -> None:
    _sum(out, [BoundTable(out[first:end], _cut(table, first, end), sources)])
    queue().keep(out, *sources)


def give_back(
    dy: Array, table: GatherTable, first: int, end: int, gradients: Sequence[Array | None]
) -> None:
    part = _cut(table, first, end)
    sums = [
        BoundTable(dx, readers_table(len(dx), [(part, k)]), [dy[first:end]], adds=True)
        for k, dx in enumerate(gradients)
        if dx is not None
    ]
    _sum(dy, sums)
    queue().keep(dy, *[dx for dx in gradients if dx is not None])


def _sum(like: Array, sums: Sequence[BoundTable]) -> None:
    SumLaunches(queue(), like.dtype, sums).launch()


def _cut(table: GatherTable, first: int, end: int) -> GatherTable:
    rows, of, starts = table
    if starts is None:
        return GatherTable(rows[first:end], None if of is None else of[first:end])
    low, high = starts[first], starts[end]
    cut = None if of is None else of[low:high]
    return GatherTable(rows[low:high], cut, starts[first : end + 1] - low)
