"""`MatrixProduct`: a product around a loop, joined with like ones of other loops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Self

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.queue import Queue


class MatrixProduct(NamedTuple):
    """C = op(A) op(B) + beta C; see `Cublas.gemm`."""

    queue: Queue
    transposes: tuple[bool, bool]
    a: Array
    b: Array
    beta: int
    c: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k."""
        (m, n), inner = self.c.shape, self.a.shape[not self.transposes[0]]
        return m, n, inner

    @property
    def key(self) -> Hashable:
        return "product", self.c.dtype, self.transposes, self.shape, self.beta, self._strides

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple([x.strides[0] // x.itemsize for x in (self.a, self.b, self.c)])

    def run(self, others: Sequence[Self] = ()) -> None:
        everyone = (self, *others)
        for each in everyone:
            self.queue.keep(each.a, each.b, each.c)
        cublas = self.queue.cublas(self.c.dtype)
        shape, strides = (*self.transposes, *self.shape), self._strides
        factors = [[device_address(x) for x in (each.a, each.b, each.c)] for each in everyone]
        if others:
            a, b, c = zip(*factors, strict=True)
            cublas.gemm_batched(*shape, a, strides[0], b, strides[1], self.beta, c, strides[2])
        else:
            ((x, y, z),) = factors
            cublas.gemm(*shape, x, strides[0], y, strides[1], self.beta, z, strides[2])
