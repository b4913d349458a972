"""The wide linear maps of a loop: their weights packed for a run, and the gradients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dynbatch.backend import DType
from dynbatch.compiler.arrays import (
    Arrays,
    Scratch,
    columns_of,
    panel_elements,
    panel_portions,
    planes_of,
    portions,
    write_transposed,
)
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays as array_kernels
from dynbatch.kernels import blas
from dynbatch.kernels.runtime import parallel
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Array, Parameter

# Products of weight gradients per thread from which threads share them, rather than each of them.
LEAST_PRODUCTS = 2
# Rows of a stream's gradient made at once.
SUMMED_ROWS = 384

Give = Callable[[int, slice, Array], None]


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
    portions = panel_portions(op, cell.planes[number])
    return sum([panel_elements(inner, width, dtype) for _, width, _, _ in portions])


def forward_weights(
    cell: CompiledLoop, scratch: Scratch, streams: bool, native: NativeFunctions | None = None
) -> Arrays:
    """Wide weights (K, O) as W, in planes of p columns (planes, K, p); wide biases as b.

    Args:
        streams: whether weights of streams are packed as well. Packing takes memory; without it the
                 products take a few percent longer.
        native:  packs W into panels for C, instead.
    """
    arrays: Arrays = {}
    for number, op in cell.maps.items():
        split = cell.planes[number]
        plane, inner = split or op.output.width, op.inputs[0].width
        bias = _wide_bias(op)
        arrays[f"b{number}"] = bias.reshape(-1, 1, plane) if split else bias
        if number in cell.stream_maps and not streams:
            arrays[f"W{number}"] = list(portions(op, plane))
            continue
        room = scratch.take(_room_of(cell, number, bias.dtype), 1).reshape(-1)
        if native is not None:
            native.pack(op, split, room)
            arrays[f"W{number}"] = room
            continue
        wide = room[: op.output.width * inner].reshape(-1, inner, plane)
        for piece in op.pieces:
            write_transposed(piece, wide, plane)
        arrays[f"W{number}"] = wide if split else wide[0]
    return arrays


def backward_weights(
    cell: CompiledLoop, scratch: Scratch, native: NativeFunctions | None = None
) -> Arrays:
    """Wide weights (O, K) of the loop as V, in planes (planes, p, K), or packed for C.

    Weights of streams are read in place: see `stream_gradients`.
    """
    arrays: Arrays = {}
    for number, op in cell.maps.items():
        if number in cell.stream_maps:
            continue
        inner, dtype = op.inputs[0].width, op.pieces[0].weight.dtype
        room = scratch.take(panel_elements(op.output.width, inner, dtype), 1).reshape(-1)
        if native is not None:
            native.pack_back(number, op, room)
            arrays[f"V{number}"] = room
            continue
        wide = room[: op.output.width * inner].reshape(-1, inner)
        for piece in op.pieces:
            rows = slice(piece.column, piece.column + piece.width)
            wide[rows] = piece.weight.value[piece.first : piece.first + piece.width]
        plane = cell.numpy.weight_planes.get(number, 0)
        arrays[f"V{number}"] = wide.reshape(-1, plane, wide.shape[1]) if plane else wide
    return arrays


def _wide_bias(op: Op) -> Array:
    """The biases of a wide map's pieces, side by side: (O,)."""
    bias = np.zeros(op.output.width, op.pieces[0].weight.dtype)
    for piece in op.pieces:
        columns = bias[piece.column : piece.column + piece.width]
        for one, first in piece.biases:
            columns += one.value[first : first + piece.width]
    return bias


def stream_gradients(cell: CompiledLoop, arrays: Arrays, give: Give | None = None) -> None:
    """dx of each stream through its wide linear maps, into dX or added to what the loop left there.

    Args:
        give: takes those that the loop left nothing of, instead: stream, rows, and their gradients.
    """
    maps: dict[int, list[tuple[Op, Array]]] = {}
    for number, op in cell.stream_maps.items():
        if number in cell.of_maps:
            dy = planes_of(columns_of(arrays, cell.of_maps[number]))
            maps.setdefault(op.inputs[0].number, []).append((op, dy))
    for place, products in maps.items():
        count = products[0][1].shape[1]
        width = cell.program.streams[place].width
        total, scratch = np.empty((2, SUMMED_ROWS, width), products[0][1].dtype)
        for start in range(0, count, SUMMED_ROWS):  # the products stay in the cache
            rows = slice(start, min(count, start + SUMMED_ROWS))
            size = rows.stop - start
            _stream_products(products, rows, total[:size], scratch[:size])
            if place in cell.backward_program.of_streams:
                arrays[f"dX{place}"][rows] += total[:size]
            elif give is not None:
                give(place, rows, total[:size])
            else:
                arrays[f"dX{place}"][rows] = total[:size]


def _stream_products(
    maps: Sequence[tuple[Op, Array]], rows: slice, total: Array, scratch: Array
) -> None:
    """total = Σ dy W over all maps of one stream, for some rows."""
    is_first = True
    for op, planes in maps:
        (x,) = op.inputs
        columns = slice(x.column, x.column + x.width)
        for plane, part, piece, first in portions(op, planes.shape[2]):
            dy = planes[plane][rows, part]
            weight = piece.weight.value[first : first + dy.shape[1]]
            if is_first and x.width == total.shape[1]:
                blas.matmul(dy, weight, total)
            else:
                if is_first:
                    total[...] = 0
                blas.matmul(dy, weight, scratch[:, columns])
                np.add(total[:, columns], scratch[:, columns], out=total[:, columns])
            is_first = False


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
    """Some rows of a weight's gradient, and of its biases', and what of dy they are made of.

    plane, columns: of dy in planes.
    weight:         (width, K), or None if it is frozen.
    """

    plane: int
    columns: slice
    weight: Array | None
    biases: list[Array]


class WeightGradients:
    """Gradients of a loop's weights and biases: one product for many steps of each map, or plane.

    The rows of a map may come in several portions: products of later ones are added.
    """

    def __init__(self, cell: CompiledLoop, gradients: Gradients) -> None:
        self._cell = cell
        self._gradients = gradients
        self._targets: dict[int, list[Target]] = {}
        self._products: list[Callable[[], None]] = []
        self._of: set[int] = set()  # the maps that these are of

    def add(self, op: Op, x: Array, dy: Array, zero: int = 0) -> None:
        """Add the gradients of one wide map, from its rows x and the gradients dy of its output.

        Args:
            zero: how many of the first rows of x are known to be zeros.
        """
        if id(op) in self._of:  # no two threads may add to one array
            self.run()
        self._of.add(id(op))
        planes = planes_of(dy)
        again = id(op) in self._targets
        if not again:
            self._targets[id(op)] = list(self._targets_of(op, planes.shape[2]))
        for target in self._targets[id(op)]:
            part = planes[target.plane][:, target.columns]
            if target.weight is not None:
                product = partial(blas.matmul_outer, add=again)
                self._products.append(partial(product, x[zero:], part[zero:], target.weight))
            if target.biases:
                total = np.ones(part.shape[0], part.dtype) @ part
                for bias in target.biases:
                    np.add(bias, total, out=bias) if again else np.copyto(bias, total)

    def _targets_of(self, op: Op, plane: int) -> Iterator[Target]:
        rows = ParameterRows(self._gradients)
        for number, columns, piece, first in portions(op, plane):
            width, offset = columns.stop - columns.start, first - piece.first
            weight = None if piece.weight.frozen else rows.take(piece.weight, first, width)
            biases = [
                rows.take(bias, start + offset, width)
                for bias, start in piece.biases
                if not bias.frozen
            ]
            yield Target(number, columns, weight, biases)

    def run(self) -> None:
        """Make what was added; threads share the products."""
        threads = parallel.available()
        if len(self._products) < LEAST_PRODUCTS * threads:
            _run_all(self._products)
        else:
            shares = [self._products[k::threads] for k in range(threads)]
            parallel.run([partial(_run_all, share) for share in shares])
        self._products = []
        self._of.clear()


def _run_all(tasks: Sequence[Callable[[], None]]) -> None:
    for task in tasks:
        task()
