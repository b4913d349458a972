"""`ScanSteps`: the steps of one pass of a batch of scans, side by side with those of others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.lock_step import arguments
from dynbatch.cells.cuda.steps import LoopSteps
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.compiler.cuda.cell import DeviceCell, Items
from dynbatch.compiler.cuda.emit import Kernel


class StepWay(NamedTuple):
    """A way to run a step: with few rows (see `PassOnDevice.items_of_few`), or with many."""

    is_few: bool
    goes_on: bool
    is_followed: bool


class ScanSteps(LoopSteps):
    """The launches of every step of a scan.

    Args:
        generic: operators with kernels of their own.
        way:     forward (0) or back (1).
    """

    rows: ScanRows

    def __init__(
        self, cell: DeviceCell, rows: ScanRows, generic: DeviceGenericSteps, way: int
    ) -> None:
        super().__init__(cell, rows, generic, way)
        carried = zip(cell.loop.carried, rows.finds, strict=True)
        self._unwanted = {incoming for (_, incoming), is_found in carried if not is_found}
        self.key = self._key()

    def _key(self) -> Hashable:
        rows, loop = self.rows, self._cell.loop
        if self._generic:
            return object()  # as no other; not this one, which would not end by itself
        missing = frozenset([name for name, matrix in rows.matrices.items() if matrix is None])
        pairs = [[rows.matrix(name).address for name in pair] for pair in loop.carried if self._way]
        apart = tuple([incoming - left for left, incoming in pairs])
        return self._cell.name, self._way, missing, apart, rows.dtype, rows.table.tobytes()

    def run(self, others: Sequence[Self] = ()) -> None:
        everyone, first = (self, *others), self._first_of_tail()
        if self._way:
            self._tail(everyone, first)
        for way, steps in groupby(self._ways(first), lambda pair: pair[0]):
            items = [*zip(*[each._items(way) for each in everyone], strict=True)]
            self._steps(everyone, items, np.array([t for _, t in steps]))
        if not self._way:
            self._tail(everyone, first)

    def _ways(self, first: int) -> Iterator[tuple[StepWay, int]]:
        """The steps before the tail in the order in which they run, each with how it runs."""
        running, itemsize = self.rows.table[:, 1].tolist(), self.rows.dtype.itemsize
        is_few = [self._cell.is_few(n, itemsize) for n in running[:first]]
        goes_on = False
        for t in range(first)[:: -1 if self._way else 1]:
            can_leave = self._pass.across is not None and t > 0 and is_few[t] and is_few[t - 1]
            yield StepWay(is_few[t], goes_on, can_leave), t
            goes_on = can_leave

    def _items(self, way: StepWay) -> Items:
        if not way.is_few:
            return self._pass.items
        return self._pass.items_of_few(way.goes_on, way.is_followed)

    def _runs_in(self, item: Any, order: Array) -> Array:
        rows = self.rows
        continues: Array = rows.table[order, 2] >= 0
        if isinstance(item, Kernel):
            return continues | (not item.stores <= self._unwanted)
        source = item.source or item
        finds_state = not source.reads_state or rows.finds[source.inputs[0].base.number]
        skips = not item.is_linear or self._cell.loop.skips_zeros(item)
        return continues | finds_state | (not skips)

    def _first_of_tail(self) -> int:
        """The step from which on one launch does the rest; the number of steps without a tail."""
        running, itemsize = self.rows.table[:, 1], self.rows.dtype.itemsize
        tails = self._cell.tails
        most = tails[self._way].most_rows(itemsize) if tails else 0
        return int((running > most).sum())

    def _tail(self, everyone: Sequence[Self], first: int) -> None:
        rows, steps = self.rows, len(self.rows.steps)
        if first < steps:
            kernel = self._cell.tails[self._way]
            runs = [each.rows for each in everyone]
            args = [*arguments(kernel.arrays, runs), rows.table, first, steps]
            args += [any([each._generic.keeps for each in everyone])] if kernel.asks else []
            grid = int(rows.table[first, 1]) * kernel.blocks, len(runs)
            name, shared = f"{self._cell.name}_{kernel.name}", kernel.shared * rows.dtype.itemsize
            rows.queue.launch(rows.dtype, name, grid, (kernel.threads,), args, shared)
