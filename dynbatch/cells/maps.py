"""The wide linear maps of a loop: their weights packed for a run, and the gradients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dynbatch.cells.arrays import Scratch, stream_product, write_transposed
from dynbatch.cells.compiled import CompiledLoop
from dynbatch.cells.gradients import ParameterRows
from dynbatch.cells.program import Op
from dynbatch.kernels import blas, parallel
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Array

# Products of weight gradients per thread from which threads share them, rather than each of them.
LEAST_PRODUCTS = 2
# Rows of a product that is added at once.
ADDED_ROWS = 256


def weight_elements(cell: CompiledLoop) -> int:
    """Scratch elements of `weights_of`."""
    return sum([op.inputs[0].width * op.output.width for op in cell.maps.values()])


def weights_of(cell: CompiledLoop, scratch: Scratch, transposed: bool) -> dict[str, Array]:
    """Wide weights: (K, O) as W for forward, (O, K) as V for backward, and wide biases.

    In planes of p columns these are (planes, K, p), (planes, p, K) and (planes, 1, p).
    """
    arrays: dict[str, Array] = {}
    for number, op in cell.maps.items():
        inner, total = op.inputs[0].width, op.output.width
        plane = cell.plane_of(number) or total
        wide = scratch.take(total, inner)
        if not transposed:
            for piece in op.pieces:
                rows = slice(piece.column, piece.column + piece.width)
                wide[rows] = piece.weight.value[piece.first : piece.first + piece.width]
            split = cell.plane_of(number)
            arrays[f"V{number}"] = wide.reshape(-1, plane, inner) if split else wide
            continue
        wide = wide.reshape(total // plane, inner, plane)
        bias = np.zeros(total, wide.dtype)
        for piece in op.pieces:
            write_transposed(piece, wide, plane)
            for one, first in piece.biases:
                bias[piece.column : piece.column + piece.width] += one.value[
                    first : first + piece.width
                ]
        split = cell.plane_of(number)
        arrays[f"W{number}"] = wide if split else wide[0]
        arrays[f"b{number}"] = bias.reshape(-1, 1, plane) if split else bias
    return arrays


def stream_gradients(cell: CompiledLoop, arrays: dict[str, Any]) -> None:
    """dx of each stream through its wide linear map, all rows at once."""
    for number, op in cell.stream_maps.items():
        name = cell.reverse_pass.of_maps.get(number)
        if name is None:
            continue
        place = op.inputs[0].place
        out, dy, weight = arrays[f"dX{place}"], arrays[name], arrays[f"V{number}"]
        if weight.ndim == 2:
            dy, weight = dy[None], weight[None]
        stream_product(dy, weight, out, add=place in cell.reverse_pass.streams)


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
        """Those of one wide map, of its rows x and the gradients dy of what it gave.

        Args:
            zero: how many of the first rows of x are known to be zeros.
        """
        if id(op) in self._of:  # no two threads may add to one array
            self.run()
        self._of.add(id(op))
        planes = dy if dy.ndim == 3 else dy[None]
        again = id(op) in self._targets
        if not again:
            self._targets[id(op)] = list(self._targets_of(op, planes.shape[2]))
        for target in self._targets[id(op)]:
            part = planes[target.plane][:, target.columns]
            if target.weight is not None:
                product = add_outer if again else blas.matmul_outer
                self._products.append(partial(product, x[zero:], part[zero:], target.weight))
            if target.biases:
                total = np.ones(part.shape[0], part.dtype) @ part
                for bias in target.biases:
                    np.add(bias, total, out=bias) if again else np.copyto(bias, total)

    def _targets_of(self, op: Op, plane: int) -> Iterator[Target]:
        rows = ParameterRows(self._gradients)
        for piece in op.pieces:
            for start in range(piece.column, piece.column + piece.width, plane):
                width = min(plane, piece.column + piece.width - start)
                column, offset = start % plane, start - piece.column
                weight = None
                if not piece.weight.frozen:
                    weight = rows.take(piece.weight, piece.first + offset, width)
                biases = [
                    rows.take(bias, first + offset, width)
                    for bias, first in piece.biases
                    if not bias.frozen
                ]
                yield Target(start // plane, slice(column, column + width), weight, biases)

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


def add_outer(x: Array, dy: Array, out: Array) -> None:
    """out += dyᵀ x, some rows at a time, so that the product stays in the cache."""
    product = np.empty((min(ADDED_ROWS, out.shape[0]), out.shape[1]), out.dtype)
    for start in range(0, out.shape[0], ADDED_ROWS):
        rows = out[start : start + ADDED_ROWS]
        part = product[: rows.shape[0]]
        np.matmul(dy[:, start : start + ADDED_ROWS].T, x, out=part)
        np.add(rows, part, out=rows)


def _run_all(tasks: Sequence[Callable[[], None]]) -> None:
    for task in tasks:
        task()
