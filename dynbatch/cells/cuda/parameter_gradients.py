"""`add_gradients`: what a loop's linear maps leave for one product each after the last step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime.device_loops import MatrixProduct, Works


def add_gradients(
    cell: CompiledLoop, rows: LoopRows, weights: WeightGradients, works: Works
) -> None:
    """Write down the gradients of weights and biases, and of streams whose maps were made ahead."""
    of_maps = rows.loop.backward_program.of_maps
    for group in cell.map_groups:
        xs = [rows.multiplied(cell.maps[number].inputs[0]) for number in group]
        weights.add(group, xs, rows.place(of_maps[group[0]]))
    for stream, maps in cell.reached.items():
        if rows.matrices[f"dX{stream}"] is not None:
            _add_stream_gradient(rows, maps, stream, works)


def _add_stream_gradient(rows: LoopRows, maps: Mapping[int, Op], stream: int, works: Works) -> None:
    """dx (+)= dy W of each map, for all rows."""
    backward = rows.loop.backward_program
    dx, adds = rows.array(f"dX{stream}"), stream in backward.of_streams
    for number, op in maps.items():
        (x,) = op.inputs
        if not adds and not x.is_whole():
            works.call(partial(arrays.fill, dx, 0))
            adds = True
        dy, weight = rows.whole(backward.of_maps[number]), rows.array(f"V{number}")
        out = dx[:, x.column : x.column + x.width]
        works.then(MatrixProduct(rows.queue, (False, False), dy, weight, adds, out))
        adds = True
