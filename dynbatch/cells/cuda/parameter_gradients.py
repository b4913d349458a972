"""`LoopGradients`: what a loop's linear maps leave for one product each after the last step."""

from __future__ import annotations

from collections.abc import Mapping
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

    def __init__(self, cell: CompiledLoop, rows: LoopRows, count: int) -> None:
        self.cell = cell
        self.rows = rows
        self.loop = rows.loop
        self.count = count

    def parameters(self, weights: WeightGradients, works: Works) -> None:
        """Write down the gradients of linear maps: weights, biases, the tokens they multiplied."""
        rows, cell = self.rows, self.cell
        of_maps = self.loop.backward_program.of_maps
        for group in cell.map_groups:
            xs = [self._multiplied_rows(cell.maps[number]) for number in group]
            weights.add(group, xs, rows.whole(of_maps[group[0]]))
        for stream in cell.reached:
            if rows.matrices[f"dX{stream}"] is not None:
                self._stream_gradient(cell.reached[stream], stream, works)

    def _multiplied_rows(self, op: Op) -> MultipliedRows:
        zeros, x = self._zero_rows(op), self._multiplied(op)
        return MultipliedRows(x.part(zeros, 0, x.width), zeros, self.count - zeros)

    def _zero_rows(self, op: Op) -> int:
        return 0

    def _multiplied(self, op: Op) -> DeviceMatrix:
        (value,) = op.inputs
        return self.rows.whole(value)

    def _stream_gradient(self, maps: Mapping[int, Op], stream: int, works: Works) -> None:
        """dx (+)= dy W of each map, for all rows."""
        rows, backward = self.rows, self.loop.backward_program
        dx, adds = rows.matrix(f"dX{stream}"), stream in backward.of_streams
        for number, op in maps.items():
            (x,) = op.inputs
            if not adds and not x.is_whole():
                works.call(partial(arrays.fill, dx.array, 0))
                adds = True
            dy, weight = rows.whole(backward.of_maps[number]), rows.matrix(f"V{number}")
            shape, out = (self.count, x.width, op.output.width), dx.part(0, x.column, x.width)
            works.then(MatrixProduct(rows.queue, (False, False), shape, dy, weight, adds, out))
            adds = True
