"""`CallSteps`: the batches of one group of a region's calls, in one pass on a GPU."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.lock_step import LockStep
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.cuda.steps import Alike, LoopSteps
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.kernels.runtime.device_loops import PreparedLoop, SumLaunches


class CallSteps(LoopSteps):
    """Launches of a batch, for every batch of a group: sums of rows, then the cell's step.

    Args:
        rows:    a step is a batch of the region, by its number there.
        batches: numbers of the group's batches, in the order in which they run.
        sums:    are made for each batch before it runs.
    """

    def __init__(
        self, cell: DeviceCell, rows: LoopRows, generic: DeviceGenericSteps, way: int,
        batches: Array, sums: SumLaunches,
    ) -> None:  # fmt: skip
        super().__init__(cell, rows, generic, way)
        self._batches = batches
        self._sums = sums
        self._whole: PreparedLoop | None = None
        self._begun = 0
        running, itemsize = rows.table[:, 1].tolist(), rows.dtype.itemsize
        self._is_few = np.array([cell.is_few(n, itemsize) for n in running])

    def run(self, batches: Array, is_apart: bool) -> None:
        """Queue the next batches of the group.

        Args:
            is_apart: whether the queue may be flushed between the group's batches.
        """
        queue = self.rows.queue
        if self._generic:
            for is_few, some in groupby(batches.tolist(), self._is_few.__getitem__):
                items = self._pass.few if is_few else self._pass.items
                alike = [(self._sums,), *[(item,) for item in items]]
                self._steps((self,), alike, np.array([*some]))
        elif is_apart or batches.size == self._batches.size:
            queue.add(self._of(batches))
        else:  # others come in between
            if self._whole is None:
                self._whole = self._of(self._batches)
            for number in range(self._begun, self._begun + batches.size):
                queue.add(self._whole.step(number))
            self._begun += batches.size

    def _of(self, order: Array) -> PreparedLoop:
        steps, is_few = LockStep(self._cell, [self.rows], order), self._is_few[order]
        self._add(steps, (self._sums,), order, np.ones(order.size, bool))
        for items, where in ((self._pass.items, ~is_few), (self._pass.few, is_few)):
            for item in items if where.any() else ():
                self._add(steps, (item,), order, where)
        return steps.steps

    def _add(self, steps: LockStep, alike: Alike, order: Array, where: Array) -> None:
        if alike[0] is not self._sums:
            super()._add(steps, alike, order, where)
        elif self._sums:
            self._sums.add_to(steps.steps, self.rows.table, order, where)
