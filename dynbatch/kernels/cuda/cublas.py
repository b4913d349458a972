"""`Cublas`: matrix products of cuBLAS by address, queued in their turn between the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dynbatch.kernels.cuda.queue import Queue

PREFIX = {"float32": "s", "float64": "d"}
# The scalars of a product, read from the host when the product is started.
SCALARS = {name: np.array([0, 1], name) for name in PREFIX}


class Product(NamedTuple):
    """A call of cuBLAS that waits; `label` says for whom it is made."""

    function: Callable[..., None]
    args: tuple[Any, ...]
    label: str


class Cublas:
    """Products for one element type, of matrices given by address and leading dimension.

    Matrices are row-major: element (i, j) is at `address + (i * ld + j) * itemsize`, and `ld` is at
    least the number of columns as stored. Addresses must stay valid until the queue is flushed. A
    product runs on CuPy's current stream, in the precision of its operands (no TF32), and two runs
    on one stream give the same bits.

    cuBLAS itself is column-major. A row-major matrix read by columns is its transpose, so what is
    asked of it is Cᵀ = op(B)ᵀ op(A)ᵀ: the factors exchanged.

    Args:
        queue: to which the products go. It belongs to a thread and a device, as the handle does.
        dtype: float32 or float64.
        handle: of cuBLAS; CuPy's own if None.
    """

    __slots__ = ("_gemm", "_gemm_planes", "_handle", "_queue", "_scalars", "dtype")

    def __init__(self, queue: Queue, dtype: Any, handle: int | None = None) -> None:
        self.dtype = np.dtype(dtype)
        cuda = queue.cupy.cuda
        library, prefix = cuda.cublas, PREFIX[self.dtype.name]
        self._queue = queue
        self._handle = cuda.get_cublas_handle() if handle is None else handle
        library.setPointerMode(self._handle, library.CUBLAS_POINTER_MODE_HOST)
        library.setMathMode(self._handle, library.CUBLAS_DEFAULT_MATH)
        self._gemm = getattr(library, f"{prefix}gemm")
        self._gemm_planes = getattr(library, f"{prefix}gemmStridedBatched")
        scalars = SCALARS[self.dtype.name]
        self._scalars = tuple([scalars[k:].ctypes.data for k in range(2)])

    def gemm(
        self, transpose_a: bool, transpose_b: bool, m: int, n: int, k: int,
        a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
    ) -> None:  # fmt: skip
        """C = op(A) op(B) + beta C, queued.

        Args:
            transpose_a: op(A) (m, k) is Aᵀ, with A (k, m) as stored; likewise op(B) (k, n).
            beta:        1 to add to C (m, n), 0 to overwrite it, whatever it holds.
        """
        if not (m and n and k):
            self._no_product(1, m, n, beta, c, ldc, 0)
            return
        scalars = self._scalars
        self._queue.add(Product(
            self._gemm,
            (self._handle, transpose_b, transpose_a, n, m, k, scalars[1],
             b, ldb, a, lda, scalars[beta], c, ldc),
            self._queue.label,
        ))  # fmt: skip

    def gemm_planes(
        self, transpose_a: bool, transpose_b: bool, m: int, n: int, k: int,
        a: int, lda: int, step_a: int, b: int, ldb: int, step_b: int,
        beta: int, c: int, ldc: int, step_c: int, planes: int,
    ) -> None:  # fmt: skip
        """C[p] = op(A[p]) op(B[p]) + beta C[p] for every plane, in one call, queued.

        Args:
            step_a: elements from a plane to the next; 0 where all planes read the same A. The
                planes of C do not overlap.
        """
        if not (m and n and k and planes):
            self._no_product(planes, m, n, beta, c, ldc, step_c)
            return
        scalars = self._scalars
        self._queue.add(Product(
            self._gemm_planes,
            (self._handle, transpose_b, transpose_a, n, m, k, scalars[1],
             b, ldb, step_b, a, lda, step_a, scalars[beta], c, ldc, step_c, planes),
            self._queue.label,
        ))  # fmt: skip

    def _no_product(
        self, planes: int, m: int, n: int, beta: int, c: int, ldc: int, step: int
    ) -> None:
        """A sum over nothing is 0: cuBLAS does not say what it does then."""
        if not beta:
            total, threads = planes * m * n, 256
            args = (c, m, n, ldc, step, total)
            self._queue.launch(self.dtype, "zero_planes", (-(-total // threads),), (threads,), args)
