"""`LoopSteps`: queues the steps of one pass of a loop, or of several in lock step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Self

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.lock_step import LockStep
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.ir import OWN_KERNELS, Op, OpCode
from dynbatch.kernels.runtime.device_loops import PreparedLoop

Alike = tuple[Any, ...]
"""An item of a step, an operator, a kernel or what a subclass knows, of each loop in lock step."""


class LoopSteps:
    """The launches of every step.

    Args:
        generic: operators with kernels of their own.
        way:     forward (0) or back (1).
    """

    def __init__(
        self, cell: DeviceCell, rows: LoopRows, generic: DeviceGenericSteps, way: int
    ) -> None:
        self.rows = rows
        self._cell = cell
        self._generic = generic
        self._way = way
        self._pass = (cell.forward, cell.backward)[way]

    def _steps(self, everyone: Sequence[Self], items: Sequence[Alike], order: Array) -> None:
        queue = self.rows.queue
        parts = [[*part] for _, part in groupby(items, self._is_own)]
        if not any(map(self._is_own, items)):
            queue.add(self._prepared(everyone, items, order))
            return
        generic = [op.node for op in self._cell.loop.program.generic]
        is_whole = all([type(node).names_kernels for node in generic])
        prepared = [self._prepared(everyone, part, order) for part in parts if is_whole]
        for number, t in enumerate(order.tolist()):
            for k, part in enumerate(parts):
                if self._is_own(part[0]):
                    self._own(part, t)
                elif is_whole:
                    queue.add(prepared[k].step(number))
                else:  # what flushes: no table lies on the device for longer than that
                    queue.add(self._prepared(everyone, part, order[number : number + 1]))

    def _prepared(
        self, everyone: Sequence[Self], items: Sequence[Alike], order: Array
    ) -> PreparedLoop:
        """Items of steps, but for those with kernels of their own."""
        steps = LockStep(self._cell, [each.rows for each in everyone], order)
        for alike in items:
            if not self._is_own(alike):
                self._add(steps, alike, order, self._runs_in(alike[0], order))
        return steps.steps

    def _add(self, steps: LockStep, alike: Alike, order: Array, where: Array) -> None:
        item = alike[0]
        if isinstance(item, Kernel):
            steps.kernel(item, where)
        elif item.opcode in OWN_KERNELS:
            self._generic.add(item, steps.steps, order)
        elif item.is_linear:
            steps.map(alike, where)
        else:
            steps.map_gradient(alike, where)

    def _runs_in(self, item: Any, order: Array) -> Array:
        return np.ones(order.size, bool)

    def _own(self, items: Sequence[Alike], t: int) -> None:
        for (op,) in items:
            if op.opcode is OpCode.GENERIC:
                self._generic.forward(op, t)
            else:
                self._generic.backward(op, t)

    def _is_own(self, alike: Alike) -> bool:
        """Whether an item is run by the kernels of its node type, a step at a time."""
        op = alike[0]
        if not isinstance(op, Op) or op.opcode not in OWN_KERNELS:
            return False
        return not self._generic.is_prepared(op)
