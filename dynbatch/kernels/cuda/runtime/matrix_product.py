"""`MatrixProduct`: a product around a loop, joined with like ones of other loops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Self

from dynbatch.kernels.cuda.runtime.matrices import DeviceMatrix
from dynbatch.kernels.cuda.runtime.queue import Queue


class MatrixProduct(NamedTuple):
    """C = op(A) op(B) + beta C; see `Cublas.gemm`.

    shape: m, n and k.
    """

    queue: Queue
    transposes: tuple[bool, bool]
    shape: tuple[int, int, int]
    a: DeviceMatrix
    b: DeviceMatrix
    beta: int
    c: DeviceMatrix

    @property
    def key(self) -> Hashable:
        strides = self.a.stride, self.b.stride, self.c.stride
        return "product", self.c.array.dtype, self.transposes, self.shape, self.beta, strides

    def run(self, others: Sequence[Self] = ()) -> None:
        everyone = (self, *others)
        for each in everyone:
            self.queue.keep(each.a.array, each.b.array, each.c.array)
        cublas = self.queue.cublas(self.c.array.dtype)
        strides = self.a.stride, self.b.stride, self.c.stride
        shape = (*self.transposes, *self.shape)
        factors = [(each.a.address, each.b.address, each.c.address) for each in everyone]
        if others:
            a, b, c = zip(*factors, strict=True)
            cublas.gemm_batched(*shape, a, strides[0], b, strides[1], self.beta, c, strides[2])
        else:
            ((x, y, z),) = factors
            cublas.gemm(*shape, x, strides[0], y, strides[1], self.beta, z, strides[2])
