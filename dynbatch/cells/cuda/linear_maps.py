"""The wide linear maps of a loop on a GPU: their weights, and the gradients of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.linear_maps import Target
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
)


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
) -> dict[str, Array | None]:
    """Weights and biases by their names: of all pieces, or a parameter itself; None for no bias.

    Args:
        rooms:   the arrays of `wide_rooms`.
        gathers: fill them; None where they are filled.
    """
    maps: dict[str, Array | None] = {}
    for op in loop.program.linear_maps:
        number = loop.maps[id(op)]
        for name, alone, gather in (
            (array_name(Role.WEIGHT, number), _weight_alone(op), _gather_weight),
            (array_name(Role.BIAS, number), _bias_alone(op), _gather_bias),
        ):
            maps[name] = rooms.get(name) if alone is None else alone
            if alone is None and name in rooms and gathers is not None:
                gather(op, rooms[name], gathers)
    return maps


def _weight_alone(op: Op) -> Array | None:
    piece = op.pieces[0]
    is_alone = len(op.pieces) == 1 and piece.width == piece.weight.shape[0]
    return piece.weight.value if is_alone else None


def _bias_alone(op: Op) -> Array | None:
    piece = op.pieces[0]
    is_alone = len(op.pieces) == len(piece.biases) == 1
    is_alone = is_alone and piece.width == piece.biases[0][0].size
    return piece.biases[0][0].value.reshape(1, -1) if is_alone else None


def _gather_weight(op: Op, wide: Array, gathers: RowGathers) -> None:
    for piece in op.pieces:
        gathers.pick(piece.rows, piece.width, wide[piece.columns])


def _gather_bias(op: Op, wide: Array, gathers: RowGathers) -> None:
    """The sums of each piece's biases: the first of each in one launch with all the others."""
    for piece in op.pieces:
        out = wide[:, piece.columns]
        parts = [bias.value[first : first + piece.width] for bias, first in piece.biases]
        if not parts:
            gathers.pick(wide, np.array([-1]), out)
            continue
        gathers.pick(parts[0].reshape(1, -1), 1, out)
        for part in parts[1:]:
            gathers.then(partial(arrays.accumulate, part, out.reshape(-1)))


def write_products(
    queue: Queue, works: Works, later: bool, xs: Sequence[Array], dy: DeviceMatrix,
    targets: Sequence[Target], adds: bool,
) -> None:  # fmt: skip
    """Write down dW (+)= dyᵀ x, one product each, and db (+)= Σ dy; see `WeightGradients.add`.

    Args:
        later: whether a bias may be written with others, when the queue is settled.
    """
    rows = dy.view(len(dy.array))
    for columns, weights, _ in targets:
        for x, weight in zip(xs, weights, strict=True):
            if weight is not None:
                part = rows[len(rows) - len(x) :, columns]
                works.then(MatrixProduct(queue, (True, False), part, x, int(adds), weight))
    parts = [(t.columns.start, bias) for t in targets for bias in t.biases]
    is_all = not adds and all([bias.size == dy.stride for _, bias in parts])
    if is_all and (later or len(parts) == 1):
        for _, bias in parts:
            works.call(partial(arrays.sum_rows, dy.array, bias, later))
    elif parts:
        works.call(partial(_sum_biases, queue, dy, parts, adds))


def _sum_biases(
    queue: Queue, dy: DeviceMatrix, parts: Sequence[tuple[int, Array]], adds: bool
) -> None:
    """Give each part of Σ dy, by its first column, to a gradient."""
    total = queue.empty((dy.stride,), dy.array.dtype)  # of rows that dy may be some columns of
    arrays.sum_rows(dy.array, total)
    add_or_copy = arrays.accumulate if adds else arrays.copy
    for column, gradient in parts:
        start = dy.offset + column
        add_or_copy(total[start : start + gradient.size], gradient)
