"""`ShardGradients`: parameter gradients of a shard's operators with kernels of their own."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels import arrays, blas
from dynbatch.kernels.rows import scatter_rows
from dynbatch.nodes.batch import Gradients
from dynbatch.parameter import Parameter


class ShardGradients:
    """Parameter gradients of one shard's generic operators, summed over steps, then passed on."""

    later = False  # the next step's are added to it

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Parameter, Array]] = {}
        self._pending: dict[int, tuple[Parameter, Array]] = {}

    def outer(self, parameter: Parameter, x: Array, dy: Array) -> None:
        blas.matmul_outer(x, dy, self.buffer(parameter))

    def add(self, parameter: Parameter, gradient: Array) -> None:
        known = self._sums.get(parameter.uid)
        gradient = gradient.reshape(parameter.shape)
        if known is None:
            self._sums[parameter.uid] = (parameter, arrays.snapshot(gradient))
        else:
            arrays.accumulate(gradient, known[1])

    def rows(self, parameter: Parameter, ids: Array, dy: Array) -> None:
        scatter_rows(dy, ids, self.buffer(parameter))

    def buffer(self, parameter: Parameter) -> Array:
        """An array to overwrite; it is added when the next is asked for, or at the end."""
        if parameter.uid in self._pending:
            self.add(*self._pending.pop(parameter.uid))
        self._pending[parameter.uid] = parameter, parameter.empty_like()
        return self._pending[parameter.uid][1]

    def pass_on(self, gradients: Gradients) -> None:
        for parameter, array in self._pending.values():
            self.add(parameter, array)
        for parameter, total in self._sums.values():
            gradients.add(parameter, total)
