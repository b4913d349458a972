"""The wide linear maps of a loop: their weights packed for a run, and the gradients of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import DType
from dynbatch.compiler.arrays import (
    Arrays,
    Scratch,
    columns_of,
    panel_elements,
    planes_of,
    portions,
    write_transposed,
)
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays as array_kernels
from dynbatch.kernels.c.linear_gradients import weight_tasks
from dynbatch.kernels.c.runtime.tasks import Task, Tasks
from dynbatch.kernels.linear_gradients import MapGradient
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Array, Parameter


def forward_elements(cell: CompiledLoop, streams: bool, dtype: DType) -> int:
    """Scratch elements of `forward_weights`."""
    numbers = [number for number in cell.maps if streams or number not in cell.stream_maps]
    return sum([_room_of(cell, number, dtype) for number in numbers])


def backward_elements(cell: CompiledLoop, dtype: DType) -> int:
    """Scratch elements of `backward_weights`."""
    maps = [op for number, op in cell.maps.items() if number not in cell.stream_maps]
    return sum([panel_elements(op.output.width, op.inputs[0].width, dtype) for op in maps])


def _room_of(cell: CompiledLoop, number: int, dtype: DType) -> int:
    """Elements of a wide map's packed weights, in C or not."""
    op = cell.maps[number]
    inner = op.inputs[0].width
    return sum([panel_elements(inner, piece.width, dtype) for piece in op.pieces])


def forward_weights(
    cell: CompiledLoop, scratch: Scratch, streams: bool, native: NativeFunctions | None,
    tasks: Tasks,
) -> Arrays:  # fmt: skip
    """Wide weights (K, O) as W, in planes of p columns (planes, K, p) for NumPy; biases as b.

    Args:
        streams: whether weights of streams are packed as well. Packing takes memory; without it the
                 products take a few percent longer.
        native:  packs W into panels for C, instead.
        tasks:   where that is written down.
    """
    arrays: Arrays = {}
    packs: list[Task] = []
    for number, op in cell.maps.items():
        split = cell.planes[number] if native is None else 0
        plane, inner = split or op.output.width, op.inputs[0].width
        bias = _wide_bias(op)
        arrays[f"b{number}"] = bias.reshape(-1, 1, plane) if split else bias
        if number in cell.stream_maps and not streams:
            arrays[f"W{number}"] = list(portions(op, plane))
            continue
        room = scratch.take(_room_of(cell, number, bias.dtype), 1).reshape(-1)
        if native is not None:
            packs += native.pack(op, room)
            arrays[f"W{number}"] = room
            continue
        wide = room[: op.output.width * inner].reshape(-1, inner, plane)
        for piece in op.pieces:
            write_transposed(piece, wide, plane)
        arrays[f"W{number}"] = wide if split else wide[0]
    tasks.then(*[[each] for each in packs])
    return arrays


def backward_weights(
    cell: CompiledLoop, scratch: Scratch, native: NativeFunctions | None, tasks: Tasks
) -> Arrays:
    """Wide weights (O, K) of the loop as V, in planes (planes, p, K), or packed for C.

    Weights of streams are read in place: see `stream_gradients`.
    """
    arrays: Arrays = {}
    packs: list[Task] = []
    for number, op in cell.maps.items():
        if number in cell.stream_maps:
            continue
        inner, dtype = op.inputs[0].width, op.pieces[0].weight.dtype
        room = scratch.take(panel_elements(op.output.width, inner, dtype), 1).reshape(-1)
        if native is not None:
            packs += native.pack_back(op, room)
            arrays[f"V{number}"] = room
            continue
        wide = room[: op.output.width * inner].reshape(-1, inner)
        for piece in op.pieces:
            rows = slice(piece.column, piece.column + piece.width)
            wide[rows] = piece.weight.value[piece.first : piece.first + piece.width]
        plane = cell.numpy.weight_planes.get(number, 0)
        arrays[f"V{number}"] = wide.reshape(-1, plane, wide.shape[1]) if plane else wide
    tasks.then(*[[each] for each in packs])
    return arrays


def _wide_bias(op: Op) -> Array:
    """The biases of a wide map's pieces, side by side: (O,)."""
    bias = np.zeros(op.output.width, op.pieces[0].weight.dtype)
    for piece in op.pieces:
        columns = bias[piece.column : piece.column + piece.width]
        for one, first in piece.biases:
            columns += one.value[first : first + piece.width]
    return bias


Products = list[tuple[Array, Array, int]]


def stream_gradients(
    cell: CompiledLoop, arrays: Arrays, outs: Mapping[int, Array], order: Array | None = None
) -> Iterator[tuple[Products, Array | None, Array | None, Array, bool]]:
    """What `scatter_products` makes dx of each stream of, in outs[k][order].

    Args:
        outs:  where gradients go, of those streams whose are asked for. It may be dX itself.
        order: None if that is in the rows of the loop.
    """
    for place, out in outs.items():
        found = arrays[f"dX{place}"] if place in cell.backward_program.of_streams else None
        products: Products = []
        for number, op in cell.stream_maps.items():
            (x,) = op.inputs
            if x.number != place or number not in cell.of_maps:
                continue
            dy = planes_of(columns_of(arrays, cell.of_maps[number]))
            for plane, columns, piece, first in portions(op, dy.shape[2]):
                rows = slice(first, first + columns.stop - columns.start)
                products.append((dy[plane][:, columns], piece.weight.value[rows], x.column))
        is_there = found is out
        if products or not is_there:
            yield products, None if is_there else found, order, out, is_there


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

    plane, columns: of dy in planes.
    weights: (width, K) of each map, or None where one is frozen.
    """

    plane: int
    columns: slice
    weights: list[Array | None]
    biases: list[Array]


class WeightGradients:
    """Gradients of a loop's weights and biases.

    The rows of maps may come in several portions: sums over later ones are added.

    Args:
        tasks: where they are written down.
    """

    def __init__(self, cell: CompiledLoop, gradients: Gradients, tasks: Tasks) -> None:
        self._tasks = tasks
        self._maps = cell.maps
        self._gradients = gradients
        self._targets: dict[tuple[int, ...], list[Target]] = {}

    def add(self, group: tuple[int, ...], xs: Sequence[Array], dy: Array) -> None:
        """Add the gradients of one of the cell's `map_groups`.

        Args:
            xs: the rows that each map multiplied; before them it multiplied zeros.
            dy: the gradient of their output.
        """
        planes = planes_of(dy)
        again = group in self._targets
        if not again:
            self._targets[group] = [*self._targets_of(group, planes.shape[2])]
        targets = self._targets[group]
        maps = [
            MapGradient(planes[t.plane][:, t.columns], t.biases[0] if t.biases else None, t.weights)
            for t in targets
        ]
        self._tasks.then(*[[each] for each in weight_tasks(xs, maps, again)])

    def finish(self) -> None:
        """Copy the gradients of biases that are added up to those that are added to them."""
        for targets in self._targets.values():
            for target in targets:
                for bias in target.biases[1:]:
                    np.copyto(bias, target.biases[0])

    def _targets_of(self, group: tuple[int, ...], plane: int) -> Iterator[Target]:
        rows = [ParameterRows(self._gradients) for _ in group]
        for parts in zip(*[portions(self._maps[k], plane) for k in group], strict=True):
            number, columns = parts[0][:2]
            width, target = columns.stop - columns.start, Target(number, columns, [], [])
            for (_, _, piece, first), own in zip(parts, rows, strict=True):
                frozen = piece.weight.frozen
                target.weights.append(None if frozen else own.take(piece.weight, first, width))
                target.biases.extend(
                    own.take(bias, start + first - piece.first, width)
                    for bias, start in piece.biases
                    if not bias.frozen
                )
            yield target
