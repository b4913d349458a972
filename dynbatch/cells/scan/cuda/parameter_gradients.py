"""`ScanGradients`: the gradients that a scan's loop leaves for one product or copy each."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.cells.cuda.parameter_gradients import LoopGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.run import Sorted
from dynbatch.compiler.arrays import memory_rows
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op, Origin
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime.device_loops import DeviceMatrix, RowGathers, Works, matrix_of
from dynbatch.ragged import Ragged


class ScanGradients(LoopGradients):
    """Gradients of parameters over all steps of a chunk, and of streams, states and memories.

    Args:
        gathers: bring the states as every step found them, which weights' gradients need, to their
            room ahead of the loop.
    """

    rows: ScanRows

    def __init__(self, cell: CompiledLoop, rows: ScanRows, gathers: RowGathers) -> None:
        super().__init__(cell, rows, rows.tokens)
        self._found_states(gathers)

    def _zero_rows(self, op: Op) -> int:
        base, steps = op.inputs[0].base, self.rows.steps
        is_known = base.origin is Origin.STATE and not self.rows.finds[base.number] and steps
        return steps[0][2] if is_known else 0

    def _found_states(self, gathers: RowGathers) -> None:
        rows = self.rows
        for part in self.loop.backward_program.found_states():
            state = self.loop.program.following[part]
            earlier, states = rows.found(part)
            gathers.pick(rows.whole(state), earlier, rows.matrix(f"H{part}"), states)

    def _multiplied(self, op: Op) -> DeviceMatrix:
        (value,) = op.inputs
        if value.base.origin is not Origin.STATE:
            return super()._multiplied(op)
        matrix = self.rows.matrix(f"H{value.base.number}")
        return matrix.part(0, value.column, value.width)

    def inputs(
        self, dxs: Sorted[Ragged | None], memory_gradients: list[Ragged], works: Works
    ) -> RowGathers:
        """Gathers that overwrite gradients of the chunk's streams; then of states and memories.

        Args:
            memory_gradients: in the order of the sentences; empty where no operator reads one.
        """
        rows = self.rows
        gathers = RowGathers(rows.queue, rows.dtype)
        of_streams, of_inits, of_memories = dxs
        for k, dx in enumerate(of_streams):
            if dx is not None and k in self.cell.reached:
                gathers.put(rows.matrix(f"dX{k}"), rows.shard.order, matrix_of(dx.values))
            elif dx is not None and not rows.shard.first:
                works.call(partial(arrays.fill, dx.values, 0))
        if rows.shard.first:
            return gathers
        back = np.argsort(rows.sentences, kind="stable")
        for k, dx in enumerate(of_inits):
            if dx is not None:
                gathers.pick(rows.left(k), back, matrix_of(dx.values))
        for number, (memory, dx) in enumerate(zip(rows.memories, of_memories, strict=True)):
            if dx is not None and memory_gradients:
                source = matrix_of(memory_gradients[number].values)
                order = np.argsort(memory_rows(memory, rows.sentences)[0], kind="stable")
                gathers.pick(source, order, matrix_of(dx.values))
            elif dx is not None:
                works.call(partial(arrays.fill, dx.values, 0))
        return gathers
