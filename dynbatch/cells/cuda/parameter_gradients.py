"""`LoopGradients`: what a loop's linear maps leave for one product each after the last step."""

from __future__ import annotations

from functools import partial

from dynbatch.cells.cuda.linear_maps import MultipliedRows
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.compiler.compiled import CompiledLoop
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

    def parameters(self, cell: CompiledLoop, weights: WeightGradients, works: Works) -> None:
        """Write down the gradients of linear maps: weights, biases, the tokens they multiplied."""
        rows, maps = self.rows, self.loop.program.linear_maps
        of_maps = self.loop.backward_program.of_maps
        for group in cell.map_groups:
            xs = [self._multiplied_rows(maps[number]) for number in group]
            weights.add(group, xs, rows.whole(of_maps[group[0]]))
        for number in sorted(of_maps):
            if number in cell.stream_maps:
                self._stream_gradient(maps[number], rows.whole(of_maps[number]), works)

    def _multiplied_rows(self, op: Op) -> MultipliedRows:
        zeros, x = self._zero_rows(op), self._multiplied(op)
        return MultipliedRows(x.part(zeros, 0, x.width), zeros, self.count - zeros)

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
