"""`Cublas`: matrix products by address with cuBLAS, queued between the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynbatch.kernels.cuda.runtime.cupy_types import CublasLibrary, CupyModule
from dynbatch.kernels.cuda.runtime.staging import Upload
from dynbatch.kernels.cuda.runtime.work import WorkQueue
from dynbatch.kernels.runtime.precision import FULL

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

PREFIX = {"float32": "s", "float64": "d"}
# The scalars of a product, read from the host when the product is started.
SCALARS = {name: np.array([0, 1], name) for name in PREFIX}
# What a handle allocates for itself, by the GPU's capability: 32 MiB from Hopper on (cuBLAS's
# manual, `cublasSetWorkspace`).
WORKSPACE_BYTES = {True: 32 << 20, False: 4 << 20}
# `cudaDataType` of float32, and what cuBLAS is asked for: float32 matrices whose factors it rounds
# on the way to the tensor cores.
FLOAT32 = 0
COMPUTE_TYPES = {
    "tf32": "CUBLAS_COMPUTE_32F_FAST_TF32", "bfloat16": "CUBLAS_COMPUTE_32F_FAST_16BF",
}  # fmt: skip
# Handles of streams that have ended are not told apart from others: the oldest goes.
MOST_HANDLES = 8


class Handles:
    """The cuBLAS handles of one queue, one for each stream, for all element types.

    A handle owns the workspace of its products, which two streams must not share, and whose use
    decides the bits of a result. So a product takes the handle of the stream on which it is
    started. The null stream uses CuPy's own handle.

    Attributes:
        products: started with these handles so far.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self.cupy = cupy
        self.products = 0
        self._by_stream: dict[int, int] = {}

    def of(self, stream: int) -> int:
        """The handle of a stream, by its address; 0 is the null stream."""
        handle = self._by_stream.get(stream)
        return self._make(stream) if handle is None else handle

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory of the handles, which neither dynbatch nor CuPy allocates."""
        is_new = int(self.cupy.cuda.Device().compute_capability) >= 90
        return len(self._by_stream) * WORKSPACE_BYTES[is_new]

    def _make(self, stream: int) -> int:
        cuda = self.cupy.cuda
        library = cuda.cublas
        streams = [address for address in self._by_stream if address]
        if len(streams) == MOST_HANDLES:
            library.destroy(self._by_stream.pop(streams[0]))  # which waits for the device
        handle = library.create() if stream else cuda.get_cublas_handle()
        library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
        library.setMathMode(handle, library.CUBLAS_DEFAULT_MATH)
        self._by_stream[stream] = handle
        return handle


class Product(NamedTuple):
    """A queued cuBLAS call, `function(handle, *args)`."""

    function: Callable[..., None]
    args: tuple[int, ...]
    handles: Handles
    label: str

    def __str__(self) -> str:
        return "a product of cuBLAS"

    def start(self, upload: Upload, stream: int) -> None:
        self.handles.products += 1
        self.function(self.handles.of(stream), *self.args)


def product_of(library: CublasLibrary, dtype: str, precision: str) -> Callable[..., None]:
    """The function of cuBLAS that multiplies, with the parameters of `sgemm`."""
    if precision == FULL or dtype != FULL:
        function: Callable[..., None] = getattr(library, f"{PREFIX[dtype]}gemm")
        return function
    compute = getattr(library, COMPUTE_TYPES[precision])

    @wraps(library.gemmEx)
    def rounded(*args: int) -> None:
        *sizes, a, lda, b, ldb, beta, c, ldc = args
        library.gemmEx(
            *sizes, a, FLOAT32, lda, b, FLOAT32, ldb, beta, c, FLOAT32, ldc,
            compute, library.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    return rounded


class Cublas:
    """Products for one element type, of matrices given by address and leading dimension.

    Matrices are row-major: element (i, j) is at `address + (i * ld + j) * itemsize`, and `ld` is at
    least the number of columns as stored. Addresses must stay valid until the queue is flushed. A
    product runs on the stream on which it is started, with the handle of that stream, and two runs
    give the same bits.

    cuBLAS itself is column-major. A row-major matrix read by columns is its transpose, so what is
    asked of it is Cᵀ = op(B)ᵀ op(A)ᵀ: the factors exchanged.

    Args:
        queue:   to which the products go.
        handles: of the streams on which they run.
        dtype:   float32 or float64.
        precision: of factors of float32 (see `kernels.runtime.precision`). Sums are of `dtype`.
    """

    __slots__ = ("_gemm", "_handles", "_queue", "_scalars", "dtype")

    def __init__(
        self, queue: WorkQueue, handles: Handles, dtype: DTypeLike, precision: str = FULL
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._queue = queue
        self._handles = handles
        self._gemm = product_of(handles.cupy.cuda.cublas, self.dtype.name, precision)
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
            self._no_product(m, n, beta, c, ldc)
            return
        scalars = self._scalars
        self._queue.add(Product(
            self._gemm,
            (transpose_b, transpose_a, n, m, k, scalars[1],
             b, ldb, a, lda, scalars[beta], c, ldc),
            self._handles,
            self._queue.label,
        ))  # fmt: skip

    def _no_product(self, m: int, n: int, beta: int, c: int, ldc: int) -> None:
        """Handle a sum over nothing, which is 0; cuBLAS does not define that case."""
        if not beta:
            total, threads = m * n, 256
            args = (c, n, ldc, total)
            self._queue.launch(self.dtype, "zero_rows", (-(-total // threads),), (threads,), args)
