"""The wide linear maps of a loop: their weights packed for a run, and the gradients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.compiler.arrays import Arrays, Rooms, columns_of, panel_elements
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays as array_kernels
from dynbatch.kernels.linear_gradients import MapGradient, scatter_products, weight_gradients
from dynbatch.kernels.runtime.tasks import Task, Tasks, in_order
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Parameter


def weight_rooms(cell: CompiledLoop, way: int, streams: bool, dtype: DType) -> Rooms:
    """The wide weights that are packed: (K, O) as W for forward (0), (O, K) as V for backward (1).

    Backward reads weights of streams in place, as NumPy always does: see `stream_gradients`.

    Args:
        streams: whether forward has room for weights of streams, which C packs as well.
    """
    rooms: Rooms = {}
    for number, op in cell.maps.items():
        inner, width = op.inputs[0].width, op.output.width
        if number in cell.stream_maps and (way or not streams):
            continue
        of_pieces = [panel_elements(inner, piece.width, dtype) for piece in op.pieces]
        elements = panel_elements(width, inner, dtype) if way else sum(of_pieces)
        rooms[f"{'WV'[way]}{number}"] = elements, 1
    return rooms


def packed_weights(cell: CompiledLoop, way: int, rooms: Arrays, tasks: Tasks) -> Arrays:
    """Wide weights in their rooms; for forward with biases as b.

    Args:
        rooms: the arrays of `weight_rooms`, among others.
        tasks: where packing into panels for C is written down.
    """
    arrays: Arrays = {} if way else {f"b{k}": _wide_bias(op) for k, op in cell.maps.items()}
    packs: list[Task] = []
    native = cell.in_c.functions(next(iter(rooms.values())).dtype)
    for number, op in cell.maps.items():
        name = f"{'WV'[way]}{number}"
        if name not in rooms:
            continue
        room = arrays[name] = rooms[name].reshape(-1)
        if native is not None:
            packs += (native.pack, native.pack_back)[way](op, room)
        elif number not in cell.stream_maps:
            shape = op.output.width, op.inputs[0].width
            # Each pass has the weight as it multiplies: (K, O) forward, (O, K) backward.
            wide = room[: shape[0] * shape[1]].reshape(shape[:: 1 if way else -1])
            arrays[name] = wide
            for piece in op.pieces:
                (wide if way else wide.T)[piece.columns] = piece.rows
    tasks.then(*[[each] for each in packs])
    return arrays


def _wide_bias(op: Op) -> Array:
    """The biases of a wide map's pieces, side by side: (O,)."""
    bias = np.zeros(op.output.width, op.pieces[0].weight.dtype)
    for piece in op.pieces:
        columns = bias[piece.columns]
        for one, first in piece.biases:
            columns += one.value[first : first + piece.width]
    return bias


def stream_gradients(
    cell: CompiledLoop, arrays: Arrays, outs: Mapping[int, Array], order: Array | None,
    span: tuple[int, int],
) -> list[Task]:  # fmt: skip
    """Tasks of one thread that make dx of each stream, in outs[k][order], of a range of rows.

    Args:
        outs:  where gradients go, of those streams whose are asked for. It may be dX itself.
        order: None if that is in the rows of the loop.
    """
    tasks: list[Task] = []
    rows = slice(*span)
    for stream, out in outs.items():
        gradient = arrays[f"dX{stream}"] if stream in cell.backward_program.of_streams else None
        products: list[tuple[Array, Array, int]] = []
        for number, op in cell.reached[stream].items():
            column = op.inputs[0].column
            dy = columns_of(arrays, cell.of_maps[number])[rows]
            products += [(dy[:, piece.columns], piece.rows, column) for piece in op.pieces]
        is_there = gradient is out
        if products or not is_there:
            start = None if is_there or gradient is None else gradient[rows]
            index, into = (None, out[rows]) if order is None else (order[rows], out)
            tasks += in_order(partial(scatter_products, products, start, index, into, is_there))
    return tasks


class ParameterRows:
    """Gradient arrays that are filled some rows at a time."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._open: dict[int, tuple[Array, list[tuple[int, int]]]] = {}

    def take(self, parameter: Parameter, first: int, count: int) -> Array:
        """Rows to overwrite. Rows that were taken before start another array."""
        known = self._open.get(parameter.uid)
        taken = known is not None and any(
            first < start + length and start < first + count for start, length in known[1]
        )
        if known is None or taken:
            array = self._gradients.buffer(parameter)
            if count < parameter.shape[0]:
                array_kernels.fill(array, 0)
            known = self._open[parameter.uid] = (array, [])
        known[1].append((first, count))
        return known[0][first : first + count]


class Target(NamedTuple):
    """Some columns of the gradient dy of maps that share it, and what is made of them.

    weights: (width, K) of each map, or None where one is frozen.
    """

    columns: slice
    weights: list[Array | None]
    biases: list[Array]


Write = Callable[[Sequence[Any], Any, Sequence[Target], bool], None]
"""Makes targets of the rows that maps multiplied and dy, or adds to them."""


def write_products(
    tasks: Tasks, xs: Sequence[Array], dy: Array, targets: Sequence[Target], adds: bool
) -> None:
    """Write gradients down as tasks; of each target's biases the first, see `finish`."""
    maps = [
        MapGradient(dy[:, t.columns], t.biases[0] if t.biases else None, t.weights) for t in targets
    ]
    tasks.call(partial(weight_gradients, xs, maps, adds))


class WeightGradients:
    """Gradients of a loop's weights and biases.

    The rows of maps may come in several portions: sums over later ones are added.

    Args:
        write: writes some of them down, as `write_products` does.
    """

    def __init__(self, cell: CompiledLoop, gradients: Gradients, write: Write) -> None:
        self._write = write
        self._maps = cell.maps
        self._rows = ParameterRows(gradients)
        self._targets: dict[tuple[int, ...], list[Target]] = {}

    def add(self, group: tuple[int, ...], xs: Sequence[Any], dy: Any) -> None:
        """Add the gradients of one of the cell's `map_groups`.

        Args:
            xs: the rows that each map multiplied; before them it multiplied zeros.
            dy: the gradient of their output.
        """
        again = group in self._targets
        if not again:
            self._targets[group] = [*self._targets_of(group)]
        self._write(xs, dy, self._targets[group], again)

    def finish(self) -> None:
        """Copy the gradients of biases that are added up to those that are added to them."""
        for targets in self._targets.values():
            for target in targets:
                for bias in target.biases[1:]:
                    np.copyto(bias, target.biases[0])

    def _targets_of(self, group: tuple[int, ...]) -> Iterator[Target]:
        for pieces in zip(*[self._maps[k].pieces for k in group], strict=True):
            target = Target(pieces[0].columns, [], [])
            for piece in pieces:
                weight, width = piece.weight, piece.width
                target.weights.append(
                    None if weight.frozen else self._rows.take(weight, piece.first, width)
                )
                target.biases.extend(
                    self._rows.take(bias, start, width)
                    for bias, start in piece.biases
                    if not bias.frozen
                )
            yield target
