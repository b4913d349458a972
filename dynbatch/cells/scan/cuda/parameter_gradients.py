"""`ScanGradients`: the gradients that a scan's loop leaves for one product or copy each."""

from __future__ import annotations

import numpy as np

from dynbatch.cells.linear_maps import ParameterRows
from dynbatch.cells.scan.cuda.matrix import DeviceMatrix, matrix_of
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.cuda.weights import bias_gradients, weight_gradients
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.cuda.kernels import LoopKernels
from dynbatch.compiler.ir import Op, Origin
from dynbatch.kernels import arrays
from dynbatch.nodes.batch import Gradients
from dynbatch.ragged import Ragged


class ScanGradients:
    """Gradients of parameters over all steps, and of streams, initial states and memories."""

    def __init__(self, rows: ScanRows, kernels: LoopKernels, scratch: Scratch) -> None:
        self.rows = rows
        self.loop = rows.loop
        self._kernels = kernels
        self._scratch = scratch

    def parameters(self, gradients: Gradients) -> None:
        """Make the gradients of all linear maps: weights, biases and the tokens they multiplied."""
        into, loop = ParameterRows(gradients), self.loop
        for op in loop.linear:
            if loop.find_gradient(op.output) is None:
                continue
            dy = self.rows.matrix(loop.gradient_of(op.output).buffer.name)
            x = self._multiplied(op)
            weight_gradients(
                self.rows.queue, into, op, x, dy, self._zero_rows(op), self.rows.tokens
            )
            bias_gradients(self.rows.queue, into, op, dy)
            if id(op) in self._kernels.stream_adds:
                self._stream_gradient(op, dy)

    def _zero_rows(self, op: Op) -> int:
        """How many of the first rows that a map multiplied are zeros."""
        base, steps = op.inputs[0].base, self.rows.steps
        is_known = base.origin is Origin.STATE and not self.rows.given[base.number] and steps
        return steps[0][2] if is_known else 0

    def _multiplied(self, op: Op) -> DeviceMatrix:
        """All rows that a linear map multiplied, packed."""
        (value,) = op.inputs
        if value.base.origin is not Origin.STATE:
            return self.rows.whole(value)
        rows, part = self.rows, value.base.number
        name = f"H{part}"
        if name not in rows.matrices:
            state = self.loop.following[part]
            packed = rows.add_matrix(name, self._scratch, rows.tokens, state.width)
            previous = rows.layout.previous
            index = np.where(previous < 0, -1 - np.arange(previous.size), previous)
            rows.pick(rows.whole(state), index, packed, rows.matrices[f"I{part}"])
        return rows.matrix(name).part(0, value.column, value.width)

    def _stream_gradient(self, op: Op, dy: DeviceMatrix) -> None:
        """dx (+)= dy W for all rows."""
        (x,) = op.inputs
        rows = self.rows
        stream = rows.matrices[f"dX{x.base.number}"]
        if stream is None:
            return
        out = stream.part(0, x.column, x.width)
        weight = rows.matrix(f"V{self.loop.maps[id(op)]}")
        rows.queue.cublas(rows.dtype).gemm(
            False, False, rows.tokens, weight.width, op.output.width,
            dy.address, dy.stride, weight.address, weight.stride,
            int(self._kernels.stream_adds[id(op)]), out.address, out.stride,
        )  # fmt: skip

    def inputs(
        self, dxs: tuple[Ragged | None, ...], memory_gradients: list[Ragged], turn: int
    ) -> None:
        """Overwrite the gradients of streams, given states and memories.

        Args:
            memory_gradients: in the order of the sentences; empty where no operator reads one.
            turn:             which of the two arrays holds the gradients of the initial states.
        """
        rows = self.rows
        for k, value in enumerate(self.loop.program.streams):
            dx = dxs[k]
            if dx is not None and self.loop.find_gradient(value) is not None:
                rows.pick(rows.matrix(f"dX{k}"), rows.layout.inverse, matrix_of(dx.values))
            elif dx is not None:
                arrays.fill(dx.values, 0)
        rest = iter(dxs[len(rows.streams) :])
        back = np.argsort(rows.sentences, kind="stable")
        for k, given in enumerate(rows.given):
            dx = next(rest) if given else None
            if dx is not None:
                rows.pick(rows.matrix(f"C{k}_{turn}"), back, matrix_of(dx.values))
        for place, (memory, dx) in enumerate(zip(rows.memories, rest, strict=True)):
            if dx is not None and memory_gradients:
                source = matrix_of(memory_gradients[place].values)
                rows.pick(source, rows.memory_order(memory), matrix_of(dx.values))
            elif dx is not None:
                arrays.fill(dx.values, 0)
