"""Gradients of a cell's parameters: rows of a wide map's weights, and sums over steps."""

from __future__ import annotations

from dynbatch.kernels import arrays, blas
from dynbatch.kernels.segment import scatter_rows
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Array, Parameter


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
                arrays.fill(array, 0)
            known = self._open[parameter.uid] = (array, [])
        known[1].append((first, count))
        return known[0][first : first + count]


class ShardGradients:
    """Parameter gradients of one shard's generic operators, summed over steps, then passed on."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Parameter, Array]] = {}
        self._scratch: dict[int, Array] = {}

    def outer(self, parameter: Parameter, x: Array, dy: Array) -> None:
        """Add dyᵀ x."""
        product = parameter.empty_like()
        blas.matmul_outer(x, dy, product)
        self.add(parameter, product)

    def add(self, parameter: Parameter, gradient: Array) -> None:
        """Add an array of the parameter's shape."""
        known = self._sums.get(parameter.uid)
        gradient = gradient.reshape(parameter.shape)
        if known is None:
            self._sums[parameter.uid] = (parameter, arrays.snapshot(gradient))
        else:
            arrays.accumulate(gradient, known[1])

    def rows(self, parameter: Parameter, ids: Array, dy: Array) -> None:
        """Add dy to rows `ids`."""
        full = parameter.empty_like()
        scatter_rows(dy, ids, full)
        self.add(parameter, full)

    def buffer(self, parameter: Parameter) -> Array:
        """An array to overwrite; it is added when the next is asked for, or at the end."""
        self._flush(parameter)
        array = self._scratch[parameter.uid] = parameter.empty_like()
        if parameter.uid not in self._sums:
            total = parameter.empty_like()
            arrays.fill(total, 0)
            self._sums[parameter.uid] = (parameter, total)
        return array

    def _flush(self, parameter: Parameter) -> None:
        pending = self._scratch.pop(parameter.uid, None)
        if pending is not None:
            self.add(parameter, pending)

    def pass_on(self, gradients: Gradients) -> None:
        """Give the sums to the step's own gradients."""
        for parameter, _ in list(self._sums.values()):
            self._flush(parameter)
        for parameter, total in self._sums.values():
            gradients.add(parameter, total)
