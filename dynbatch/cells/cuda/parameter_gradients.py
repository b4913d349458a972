"""`LoopGradients`: what a loop's linear maps leave for one product each after the last step."""

from __future__ import annotations

from functools import partial

from dynbatch.cells.cuda.linear_maps import GradientRows, bias_gradients, weight_gradients
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime.device_loops import DeviceMatrix, MatrixProduct, Works


class LoopGradients:
    """Gradients of parameters, and of streams whose maps were made ahead.

    Args:
        count: rows of all steps together.
    """

    def __init__(self, rows: LoopRows, count: int) -> None:
        self.rows = rows
        self.loop = rows.loop
        self.count = count
        self._written = {*self.loop.backward_program.of_streams}

    def parameters(self, into: GradientRows, works: Works) -> None:
        """Write down the gradients of linear maps: weights, biases, the tokens they multiplied."""
        rows, program = self.rows, self.loop.program
        for number, value in sorted(self.loop.backward_program.of_maps.items()):
            op = program.linear_maps[number]
            dy, x = rows.whole(value), self._multiplied(op)
            zero = self._zero_rows(op)
            x_read, dy_read = x.part(zero, 0, x.width), dy.part(zero, 0, dy.width)
            count = self.count - zero
            works.then(*weight_gradients(rows.queue, into, op, x_read, dy_read, count))
            bias_gradients(rows.queue, into, op, dy, works)
            if op in program.ahead:
                self._stream_gradient(op, dy, works)

    def _zero_rows(self, op: Op) -> int:
        return 0

    def _multiplied(self, op: Op) -> DeviceMatrix:
        (value,) = op.inputs
        return self.rows.whole(value)

    def _stream_gradient(self, op: Op, dy: DeviceMatrix, works: Works) -> None:
        """dx (+)= dy W for all rows."""
        (x,) = op.inputs
        rows, number = self.rows, x.base.number
        stream = rows.matrices[f"dX{number}"]
        if stream is None:
            return
        if number not in self._written and not x.is_whole():
            works.call(partial(arrays.fill, stream.array, 0))
            self._written.add(number)
        weight = rows.matrix(f"V{self.loop.maps[id(op)]}")
        shape, adds = (self.count, weight.width, op.output.width), number in self._written
        out = stream.part(0, x.column, x.width)
        product = MatrixProduct(rows.queue, (False, False), shape, dy, weight, int(adds), out)
        works.then(product)
        self._written.add(number)
