"""`ScanGradients`: the gradients that a scan's loop leaves for one product or copy each."""

from __future__ import annotations

import numpy as np

from dynbatch.cells.cuda.linear_maps import bias_gradients, weight_gradients
from dynbatch.cells.cuda.matrices import DeviceMatrix, matrix_of
from dynbatch.cells.linear_maps import ParameterRows
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.compiler.arrays import Scratch, memory_rows
from dynbatch.compiler.ir import Op, Origin
from dynbatch.kernels import arrays
from dynbatch.nodes.batch import Gradients
from dynbatch.ragged import Ragged


class ScanGradients:
    """Gradients of parameters over all steps, and of streams, initial states and memories."""

    def __init__(self, rows: ScanRows, scratch: Scratch) -> None:
        self.rows = rows
        self.loop = rows.loop
        self._scratch = scratch
        self._written = {*self.loop.backward_program.of_streams}

    def parameters(self, gradients: Gradients) -> None:
        """Make the gradients of all linear maps: weights, biases and the tokens they multiplied."""
        into, rows, program = ParameterRows(gradients), self.rows, self.loop.program
        for number, value in sorted(self.loop.backward_program.of_maps.items()):
            op = program.linear_maps[number]
            dy, x = rows.whole(value), self._multiplied(op)
            self._weights(op, x, dy, into)
            bias_gradients(rows.queue, into, op, dy)
            if op in program.ahead:
                self._stream_gradient(op, dy)

    def _weights(self, op: Op, x: DeviceMatrix, dy: DeviceMatrix, into: ParameterRows) -> None:
        """dW = dyᵀ x of every piece, one product each, without the rows of x that are zeros."""
        queue, zero = self.rows.queue, self._zero_rows(op)
        x, dy = x.part(zero, 0, x.width), dy.part(zero, 0, dy.width)
        weight_gradients(queue, into, op, x, dy, self.rows.tokens - zero)

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
            state = self.loop.program.following[part]
            packed = rows.add_matrix(name, self._scratch, rows.tokens, state.width)
            initial = rows.matrices[f"I{part}"]
            rows.pick(rows.whole(state), rows.shard.earlier(), packed, initial)
        return rows.matrix(name).part(0, value.column, value.width)

    def _stream_gradient(self, op: Op, dy: DeviceMatrix) -> None:
        """dx (+)= dy W for all rows."""
        (x,) = op.inputs
        rows = self.rows
        stream = rows.matrices[f"dX{x.base.number}"]
        if stream is None:
            return
        out = stream.part(0, x.column, x.width)
        if x.base.number not in self._written and not x.is_whole():
            arrays.fill(stream.array, 0)
            self._written.add(x.base.number)
        weight = rows.matrix(f"V{self.loop.maps[id(op)]}")
        rows.queue.cublas(rows.dtype).gemm(
            False, False, rows.tokens, weight.width, op.output.width,
            dy.address, dy.stride, weight.address, weight.stride,
            int(x.base.number in self._written), out.address, out.stride,
        )  # fmt: skip
        self._written.add(x.base.number)

    def inputs(self, dxs: tuple[Ragged | None, ...], memory_gradients: list[Ragged]) -> None:
        """Overwrite the gradients of streams, given states and memories.

        Args:
            memory_gradients: in the order of the sentences; empty where no operator reads one.
        """
        rows = self.rows
        for k, dx in enumerate(dxs[: len(rows.streams)]):
            if dx is not None and k in self._written:
                rows.pick(rows.matrix(f"dX{k}"), rows.inverse, matrix_of(dx.values))
            elif dx is not None:
                arrays.fill(dx.values, 0)
        rest = iter(dxs[len(rows.streams) :])
        back = np.argsort(rows.sentences, kind="stable")
        for k, given in enumerate(rows.given):
            dx = next(rest) if given else None
            if dx is not None:
                rows.pick(rows.matrix(f"C{k}"), back, matrix_of(dx.values))
        for place, (memory, dx) in enumerate(zip(rows.memories, rest, strict=True)):
            if dx is not None and memory_gradients:
                source = matrix_of(memory_gradients[place].values)
                order = np.argsort(memory_rows(memory, rows.sentences)[0], kind="stable")
                rows.pick(source, order, matrix_of(dx.values))
            elif dx is not None:
                arrays.fill(dx.values, 0)
