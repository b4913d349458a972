"""Matrix products, and how BLAS is set while a graph runs.

Two things that NumPy leaves to chance are fixed here:

* **Threads.** dynbatch shards its own work over its own pool, so each product runs on one BLAS
  thread. `one_thread()` sets that for the time of a run and restores what it found.
* **Products in tiles.** OpenBLAS packs both operands before it multiplies. For a recurrent step,
  few rows by a large weight, packing takes longer: 20 x 256 x 1024 in float32 reaches 51 GFLOP/s
  where the core can do 115, and even 1421 x 128 x 1024 stays at 92. Its AVX-512 build has
  kernels that need no packing, for products of at most 10^6 multiply-adds. A product cut into tiles
  below that bound stays on them, and NumPy multiplies a stack of tiles in one call: 112 and 109
  GFLOP/s (one Zen 4 core).
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from dynbatch.kernels import parallel
from dynbatch.kernels.dispatch import twin
from dynbatch.ragged import Ragged

Array = np.ndarray[Any, np.dtype[Any]]

# OpenBLAS, kernel/x86_64/sgemm_small_kernel_permit_skylakex.c: M*N*K above this is packed.
SMALL_PRODUCT = 1_000_000
# Narrower tiles of a strided weight lose more to cache conflicts than packing costs (measured); so
# do any tiles of a very wide one.
NARROWEST_TILE = 64
WIDEST_PRODUCT = 2048
# Rows of a tile, the first that leaves room for wide enough tiles.
ROW_BLOCKS = (48, 32, 24, 16)


@cache
def library() -> tuple[ctypes.CDLL, str, str] | None:
    """The OpenBLAS that NumPy's wheel carries, with its symbols' prefix and suffix, or None."""
    root = os.path.dirname(os.path.dirname(np.__file__))
    for path in sorted(glob.glob(os.path.join(root, "numpy.libs", "*openblas*"))):
        try:
            handle = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            if hasattr(handle, f"{prefix}openblas_set_num_threads{suffix}"):
                return handle, prefix, suffix
    return None


def _function(name: str) -> Callable[..., Any] | None:
    found = library()
    if found is None:
        return None
    handle, prefix, suffix = found
    function = getattr(handle, f"{prefix}{name}{suffix}", None)
    return function if function is None else _returns_text_or_int(name, function)


def _returns_text_or_int(name: str, function: Any) -> Callable[..., Any]:
    function.restype = ctypes.c_char_p if name.endswith("corename") else ctypes.c_int
    return function  # type: ignore[no-any-return]  # a ctypes function pointer is untyped


@cache
def core_name() -> str:
    """Name of the kernels that OpenBLAS chose for this processor, or "unknown"."""
    function = _function("openblas_get_corename")
    return function().decode() if function is not None else "unknown"


@cache
def has_small_products() -> bool:
    """Whether this OpenBLAS multiplies small float32 matrices without packing them."""
    return core_name() in ("SkylakeX", "Cooperlake", "SapphireRapids")


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS uses one thread inside, and what it used before afterwards."""
    get, put = _function_pair()
    before = get() if get is not None else 1
    if before == 1 or put is None:
        yield
        return
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _function_pair() -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    return _function("openblas_get_num_threads"), _function("openblas_set_num_threads")


@cache
def tiling(rows: int, inner: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the tiles that a product is cut into so that none needs packing.

    (0, 0) where the product needs none as it is, or where no cut is worth it.
    """
    if rows < 2 or rows * inner * columns <= SMALL_PRODUCT or columns > WIDEST_PRODUCT:
        return 0, 0
    narrowest = NARROWEST_TILE if columns > 512 else NARROWEST_TILE // 2
    for block in (rows, *ROW_BLOCKS) if rows <= ROW_BLOCKS[0] else ROW_BLOCKS:
        widest = SMALL_PRODUCT // (block * inner)
        for width in range(min(widest, columns), narrowest - 1, -1):
            if block <= rows and columns % width == 0:
                return block, width
    return 0, 0


@twin()
def matmul(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, for a (M, K), b (K, N), out (M, N); float32 in tiles where that is faster."""
    matmul_planes(a, b[None], out[None])


@twin()
def matmul_planes(a: Array, b: Array, out: Array) -> None:
    """out[k] = a @ b[k], for a (M, K) or (P, M, K), b (P, K, N), out (P, M, N)."""
    if out.dtype != np.float32 or b.strides[2] != 4 or out.strides[2] != 4:
        np.matmul(a, b, out=out)
        return
    rows, inner = a.shape[-2:]
    block, width = tiling(rows, inner, b.shape[2]) if has_small_products() else (0, 0)
    if not block:
        np.matmul(a, b, out=out)
        return
    whole = rows - rows % block
    _matmul_tiles(a[..., :whole, :], b, out[:, :whole], block, width)
    if whole < rows:
        _matmul_tiles(a[..., whole:, :], b, out[:, whole:], rows - whole, width)


def _matmul_tiles(a: Array, b: Array, out: Array, block: int, width: int) -> None:
    """One call of NumPy for a stack of products of (block, K) by (K, width)."""
    planes, inner, columns = b.shape
    rows = a.shape[-2]
    tiles, blocks = columns // width, rows // block
    stacked = (planes, 1, inner, tiles, width)
    np.matmul(
        a.reshape(*a.shape[:-2], blocks, 1, block, inner),
        b.reshape(stacked).transpose(0, 1, 3, 2, 4),
        out=out.reshape(planes, blocks, block, tiles, width).transpose(0, 1, 3, 2, 4),
    )


@twin()
def matmul_sum(a: Array, b: Array, scratch: Array, out: Array) -> None:
    """out = Σ_k a[k] @ b[k], for a (P, M, K), b (P, K, N), scratch (P, M, N), out (M, N)."""
    matmul_planes(a, b, scratch)
    np.add.reduce(scratch, axis=0, out=out)


@twin()
def matmul_rows(a: Array, b: Array, out: Array) -> None:
    """`out = a @ b` with the rows of `a` shared between threads."""
    shards = parallel.shards(a.shape[0], least=64)
    if len(shards) == 1:
        matmul(a, b, out)
        return
    parallel.run([partial(matmul, a[s:e], b, out[s:e]) for s, e in shards])


@twin()
def matmul_outer(x: Array, dy: Array, out: Array) -> None:
    """out (O, I) = dyᵀ x over all rows: the weight gradient. Threads share its longer side."""
    by_rows = out.shape[0] >= out.shape[1]
    shards = parallel.shards(max(out.shape), least=64)
    if len(shards) == 1:
        np.matmul(dy.T, x, out=out)
    elif by_rows:
        parallel.run([partial(np.matmul, dy[:, s:e].T, x, out=out[s:e]) for s, e in shards])
    else:
        parallel.run([partial(np.matmul, dy.T, x[:, s:e], out=out[:, s:e]) for s, e in shards])


@twin("values")
def matmul_segments(
    a: Ragged, b: Ragged, out: Ragged, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """out[k] = a[k] @ b[k] for every segment, the factors transposed where said.

    Cost: one call a segment: NumPy has no product of matrices of different shapes.
    """
    for k in range(len(out)):
        left = a[k].T if transpose_a else a[k]
        right = b[k].T if transpose_b else b[k]
        np.matmul(left, right, out=out[k])
