"""`Cublas`: matrix products by address with cuBLAS, queued between the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynbatch import backend
from dynbatch.cupy_types import CupyModule
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch, NotCapturable
from dynbatch.kernels.cuda.runtime.few_rows import THREADS, few_rows_product, grid_of
from dynbatch.kernels.cuda.runtime.packing import POINTER
from dynbatch.kernels.cuda.runtime.staging import Upload
from dynbatch.kernels.cuda.runtime.work import WorkQueue
from dynbatch.kernels.runtime.precision import FULL

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

PREFIX = {"float32": "s", "float64": "d"}
# The scalars of a product, read from the host when the product is started.
SCALARS = {name: np.array([0, 1], name) for name in PREFIX}
# Where `Cublas.arguments` has the operands of a batch.
OPERANDS = (6, 8, 11)
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
        make = library.create if stream else cuda.get_cublas_handle
        handle = backend.with_memory_of_cupy(make)
        library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
        library.setMathMode(handle, library.CUBLAS_DEFAULT_MATH)
        self._by_stream[stream] = handle
        return handle


class Product(NamedTuple):
    """A queued cuBLAS call, `function(handle, *args)`.

    upload: where the operands among `args` are places of tables of pointers, its number; else -1.
    """

    function: Callable[..., None]
    args: tuple[int, ...]
    handles: Handles
    upload: int
    label: str

    def __str__(self) -> str:
        return "a product of cuBLAS"

    def start(self, upload: Upload, stream: int) -> None:
        function, args, handles, number, _ = self
        if number >= 0:
            args = from_tables(args, number, upload)
        handle = handles.of(stream)
        handles.products += 1
        function(handle, *args)

    @property
    def has_tables(self) -> bool:
        return self.upload >= 0

    def launches_in_graph(self) -> Iterable[KernelLaunch]:
        transpose_b, transpose_a, _, rows, *_ = self.args
        which = f"of {rows} rows" if transpose_b and not transpose_a else "that is not x Wᵀ"
        if self.has_tables:
            which = "among several of one size"
        raise NotCapturable(f"{self.label or 'no node'}: a product {which}, which cuBLAS makes")


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

    Attributes:
        function: that of cuBLAS for a product, called with a handle and `arguments`.
        batched:  the one for a batch of products; None where factors are rounded, since CuPy has
            none for these that reads addresses.
    """

    __slots__ = ("_compute", "_precision", "_queue", "_scalars", "batched", "dtype", "function",
                 "handles")  # fmt: skip

    def __init__(
        self, queue: WorkQueue, handles: Handles, dtype: DTypeLike, precision: str = FULL
    ) -> None:
        self.dtype = np.dtype(dtype)
        library, prefix = handles.cupy.cuda.cublas, PREFIX[self.dtype.name]
        self._queue = queue
        self.handles = handles
        self._compute: tuple[int, int] | None = None
        self.function: Callable[..., None] = getattr(library, f"{prefix}gemm")
        self.batched: Callable[..., None] | None = getattr(library, f"{prefix}gemmBatched")
        self._precision = precision if self.dtype.name == FULL else FULL
        if self._precision != FULL:
            compute = getattr(library, COMPUTE_TYPES[precision])
            self._compute = compute, library.CUBLAS_GEMM_DEFAULT
            self.function, self.batched = library.gemmEx, None
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
        if m <= self._queue.few_rows and transpose_b and not transpose_a:
            self._few_rows_product((a, lda, b, ldb, c, ldc, beta == 1, m, n, k))
            return
        args = self.arguments(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, beta, c, ldc)
        self._queue.add(Product(self.function, args, self.handles, -1, self._queue.label))

    def gemm_batched(
        self, transpose_a: bool, transpose_b: bool, m: int, n: int, k: int,
        a: Sequence[int], lda: int, b: Sequence[int], ldb: int, beta: int, c: Sequence[int],
        ldc: int,
    ) -> None:  # fmt: skip
        """Products of one size as one call, C[i] = op(A[i]) op(B[i]) + beta C[i]; see `gemm`.

        Where factors are rounded, each product is a call.

        Args:
            a, b, c: their addresses, which come up as a table: cuBLAS reads them on the device.
        """
        if self.batched is None or not (m and n and k and len(c)):
            for x, y, z in zip(a, b, c, strict=True):
                self.gemm(transpose_a, transpose_b, m, n, k, x, lda, y, ldb, beta, z, ldc)
            return
        places = [self._queue.stage(np.array(each, POINTER), POINTER) for each in (a, b, c)]
        args = self.arguments(
            transpose_a, transpose_b, m, n, k, places[0], lda, places[1], ldb, beta, places[2], ldc
        )
        args = (*args, len(c))
        queue = self._queue
        queue.add(Product(self.batched, args, self.handles, queue.upload, queue.label))

    def _few_rows_product(self, args: tuple[int, ...]) -> None:
        *_, rows, width, _ = args
        name, source = few_rows_product(self._precision)
        self._queue.kernels(self.dtype).add(source)
        self._queue.launch(self.dtype, name, grid_of(rows, width), (THREADS,), args)

    def arguments(
        self, transpose_a: bool, transpose_b: bool, m: Any, n: Any, k: Any,
        a: Any, lda: Any, b: Any, ldb: Any, beta: int, c: Any, ldc: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The arguments of a product as cuBLAS takes them after the handle; see `gemm`."""
        one, scale = self._scalars[1], self._scalars[beta]
        if self._compute is None:
            return (transpose_b, transpose_a, n, m, k, one, b, ldb, a, lda, scale, c, ldc)
        return (
            transpose_b, transpose_a, n, m, k, one, b, FLOAT32, ldb, a, FLOAT32, lda, scale,
            c, FLOAT32, ldc, *self._compute,
        )  # fmt: skip

    def _no_product(self, m: int, n: int, beta: int, c: int, ldc: int) -> None:
        """Handle a sum over nothing, which is 0; cuBLAS does not define that case."""
        if not beta:
            total, threads = m * n, 256
            args = (c, n, ldc, total)
            self._queue.launch(self.dtype, "zero_rows", (-(-total // threads),), (threads,), args)


def from_tables(args: Sequence[Any], number: int, upload: Upload) -> tuple[Any, ...]:
    """Arguments whose operands are places of tables in an upload of that number, as addresses."""
    upload.require(number)
    filled = list(args)
    for position in OPERANDS:
        filled[position] = filled[position] + upload.base
    return tuple(filled)
