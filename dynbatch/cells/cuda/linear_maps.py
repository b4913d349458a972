"""The wide linear maps of a loop on a GPU: their weights, and the gradients of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.linear_maps import ParameterRows
from dynbatch.compiler.buffers import Role, array_name
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime.device_loops import (
    DeviceMatrix,
    MatrixProduct,
    Queue,
    RowGathers,
    Works,
    matrix_of,
)
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Parameter


def wide_rooms(loop: Loop) -> dict[str, tuple[int, int]]:
    """Rows and width of the wide weights (O, K) and biases (1, O) that no parameter alone holds."""
    rooms: dict[str, tuple[int, int]] = {}
    for op in loop.program.linear_maps:
        number, width = loop.maps[id(op)], op.output.width
        if _weight_alone(op) is None:
            rooms[array_name(Role.WEIGHT, number)] = width, op.inputs[0].width
        if op.has_bias and _bias_alone(op) is None:
            rooms[array_name(Role.BIAS, number)] = 1, width
    return rooms


def wide_maps(
    loop: Loop, rooms: Mapping[str, Array], gathers: RowGathers | None
) -> dict[str, DeviceMatrix | None]:
    """Weights and biases by their names: of all pieces, or a parameter itself; None for no bias.

    Args:
        rooms:   the arrays of `wide_rooms`.
        gathers: fill them; None where they are filled.
    """
    matrices: dict[str, DeviceMatrix | None] = {}
    for op in loop.program.linear_maps:
        number = loop.maps[id(op)]
        for name, alone, gather in (
            (array_name(Role.WEIGHT, number), _weight_alone(op), _gather_weight),
            (array_name(Role.BIAS, number), _bias_alone(op), _gather_bias),
        ):
            matrices[name] = None
            if alone is not None:
                matrices[name] = matrix_of(alone)
            elif name in rooms:
                matrices[name] = wide = matrix_of(rooms[name])
                if gathers is not None:
                    gather(op, wide, gathers)
    return matrices


def _weight_alone(op: Op) -> Array | None:
    piece = op.pieces[0]
    is_alone = len(op.pieces) == 1 and piece.width == piece.weight.shape[0]
    return piece.weight.value if is_alone else None


def _bias_alone(op: Op) -> Array | None:
    piece = op.pieces[0]
    is_alone = len(op.pieces) == len(piece.biases) == 1
    is_alone = is_alone and piece.width == piece.biases[0][0].size
    return piece.biases[0][0].value.reshape(1, -1) if is_alone else None


def _gather_weight(op: Op, wide: DeviceMatrix, gathers: RowGathers) -> None:
    for piece in op.pieces:
        rows = matrix_of(piece.weight.value).part(piece.first, 0, wide.width)
        gathers.pick(rows, piece.width, wide.part(piece.column, 0, wide.width))


def _gather_bias(op: Op, wide: DeviceMatrix, gathers: RowGathers) -> None:
    """The sums of each piece's biases: the first of each in one launch with all the others."""
    for piece in op.pieces:
        out = wide.part(0, piece.column, piece.width)
        parts = [bias.value[first : first + piece.width] for bias, first in piece.biases]
        if not parts:
            gathers.pick(wide, np.array([-1]), out)
            continue
        gathers.pick(matrix_of(parts[0].reshape(1, -1)), 1, out)
        for part in parts[1:]:
            bias_columns = out.array.reshape(-1)[out.offset : out.offset + out.width]
            gathers.then(partial(arrays.accumulate, part, bias_columns))


class GradientRows(ParameterRows):
    """Gradient arrays of maps whose rows come in one portion or more: sums over later are added.

    Each portion takes what the first took, in the same order.

    Attributes:
        adds: whether this is a later portion.

    Args:
        several: whether one may follow.
    """

    def __init__(self, gradients: Gradients, several: bool = False) -> None:
        super().__init__(gradients)
        self.later = gradients.later and not several
        self.adds = False
        self._taken: list[Array] = []
        self._again = iter(self._taken)

    def next_portion(self) -> None:
        self.adds, self._again = True, iter(self._taken)

    def take(self, parameter: Parameter, first: int, count: int) -> Array:
        if self.adds:
            return next(self._again)
        self._taken.append(super().take(parameter, first, count))
        return self._taken[-1]


def weight_gradients(
    queue: Queue, into: GradientRows, op: Op, x: DeviceMatrix, dy: DeviceMatrix, rows: int
) -> Iterator[MatrixProduct]:
    """dW (+)= dyᵀ x of every piece, one product each."""
    for piece in op.pieces:
        if piece.weight.frozen:
            continue
        out = matrix_of(into.take(piece.weight, piece.first, piece.width))
        shape, part = (piece.width, x.width, rows), dy.part(0, piece.column, piece.width)
        yield MatrixProduct(queue, (True, False), shape, part, x, int(into.adds), out)


def bias_gradients(
    queue: Queue, into: GradientRows, op: Op, dy: DeviceMatrix, works: Works
) -> None:
    """db (+)= Σ dy over all rows, of every bias."""
    trained = [
        (piece, bias, first)
        for piece in op.pieces
        for bias, first in piece.biases
        if not bias.frozen
    ]
    if not trained:
        return
    is_all = len(op.pieces) == len(trained) == 1 and dy.width == dy.stride
    if is_all and trained[0][0].width == trained[0][1].size and not into.adds:
        gradient = into.take(trained[0][1], 0, dy.width)
        works.call(partial(arrays.sum_rows, dy.array, gradient, into.later))
        return
    parts = [
        (dy.offset + piece.column, into.take(bias, first, piece.width))
        for piece, bias, first in trained
    ]
    works.call(partial(_sum_biases, queue, dy, parts, into.adds))


def _sum_biases(
    queue: Queue, dy: DeviceMatrix, parts: Sequence[tuple[int, Array]], adds: bool
) -> None:
    """Give each part of Σ dy, by its first column, to a gradient."""
    total = queue.empty((dy.stride,), dy.array.dtype)  # of rows that dy may be some columns of
    arrays.sum_rows(dy.array, total)
    add_or_copy = arrays.accumulate if adds else arrays.copy
    for start, gradient in parts:
        add_or_copy(total[start : start + gradient.size], gradient)
