"""Matrix products: cuBLAS for matrices of one shape, `blas.cu` where they differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.arrays import add_bias
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.ragged import Ragged

SIDE = 32  # rows and columns of a tile of `matmul_segments`, as in blas.cu
THREADS = 64


def matmul(a: Array, b: Array, out: Array) -> None:
    """out = a @ b; see `product`."""
    product(a, b, out)


matmul_shared = matmul  # which on a CPU tells how threads share the work


def matmul_rows(a: Array, b: Array, out: Array, bias: Array | None = None) -> None:
    product(a, b, out)
    if bias is not None:
        add_bias(out, bias)


def product(a: Array, b: Array, out: Array, beta: int = 0) -> None:
    """out = a @ b + beta out, for a (M, K), b (K, N), out (M, N), beta 0 or 1.

    a and b may be transposed views, and all three columns of wider matrices.

    Raises:
        DtypeError: the arrays differ in dtype.
        ShapeError: shapes do not fit, or an array has a unit stride in neither dimension.
    """
    m, n, k = _sizes(a, b, out)
    transpose_a, lda = _layout(a)
    transpose_b, ldb = _layout(b)
    queue().keep(a, b, out)
    queue().cublas(out.dtype).gemm(
        transpose_a, transpose_b, m, n, k, device_address(a), lda, device_address(b), ldb,
        beta, device_address(out), _row_step(out),
    )  # fmt: skip


def products(a: Sequence[Array], b: Sequence[Array], out: Sequence[Array], beta: int = 0) -> None:
    """out[i] = a[i] @ b[i] + beta out[i] in one call; see `product`.

    The matrices of a sequence have one shape and one layout.
    """
    m, n, k = _sizes(a[0], b[0], out[0])
    transpose_a, lda = _layout(a[0])
    transpose_b, ldb = _layout(b[0])
    queue().keep(*a, *b, *out)
    addresses = [[device_address(matrix) for matrix in each] for each in (a, b, out)]
    queue().cublas(out[0].dtype).gemm_batched(
        transpose_a, transpose_b, m, n, k, addresses[0], lda, addresses[1], ldb,
        beta, addresses[2], _row_step(out[0]),
    )  # fmt: skip


def matmul_outer(x: Array, dy: Array, out: Array, add: bool = False) -> None:
    product(dy.T, x, out, beta=int(add))


def matmul_segments(
    a: Ragged, b: Ragged, out: Ragged, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """out[k] = a[k] @ b[k] for every segment, in one launch, each factor transposed on request.

    This is an own kernel, since cuBLAS takes lists of pointers for different shapes.
    """
    entries, tiles = segment_entries(a, b, out, transpose_a)
    args = (a.values, b.values, out.values, entries, len(out), transpose_a, transpose_b)
    launch(out.values, "matmul_segments", (tiles,), (THREADS,), args)


def segment_entries(a: Ragged, b: Ragged, out: Ragged, transpose_a: bool) -> tuple[Array, int]:
    """The (K, 9) table of `matmul_segments`, as in `blas.cu`, and the tiles of all outputs."""
    rows = np.diff(out.offsets)
    widths = [ragged.every_width for ragged in (a, b, out)]
    tiles = -(-rows // SIDE) * -(-widths[2] // SIDE)
    inner = np.diff(a.offsets) if transpose_a else widths[0]
    starts = [ragged.starts[:-1] for ragged in (a, b, out)]
    columns = (np.cumsum(tiles) - tiles, *starts, rows, inner, *widths)
    return np.column_stack(columns), int(tiles.sum())


def _sizes(a: Array, b: Array, out: Array) -> tuple[int, int, int]:
    """M, N and K of a product; raises an error if the matrices do not fit."""
    (m, k), (inner, n) = a.shape[-2:], b.shape[-2:]
    if k != inner or out.shape[-2:] != (m, n):
        raise ShapeError(f"a product of {a.shape} and {b.shape} into {out.shape}")
    if not a.dtype == b.dtype == out.dtype:
        raise DtypeError(f"a product of {a.dtype} and {b.dtype} into {out.dtype}")
    return m, n, k


def _layout(matrix: Array) -> tuple[bool, int]:
    """Whether a matrix is stored by columns, and its leading dimension."""
    rows, columns = matrix.shape[-2:]
    if not matrix.size:
        return False, columns
    down, across = [step // matrix.dtype.itemsize for step in matrix.strides[-2:]]
    if across == 1 or columns <= 1:
        transposed, step, count, least = False, down, rows, columns
    else:
        transposed, step, count, least = True, across, columns, rows
        if down != 1 and rows > 1:
            raise ShapeError(f"a factor of shape {matrix.shape} has strides {matrix.strides}")
    if count > 1 and step < least:
        raise ShapeError(f"a factor of shape {matrix.shape} has strides {matrix.strides}")
    return transposed, step if count > 1 else least


def _row_step(out: Array) -> int:
    """The leading dimension of an output, which is row-major."""
    transposed, step = _layout(out)
    if transposed:
        raise ShapeError(f"an output of shape {out.shape} has strides {out.strides}")
    return step
