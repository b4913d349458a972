"""Matrix products, and how BLAS is set while a graph runs.

Two things that NumPy leaves to chance are fixed here:

* **Threads.** dynbatch shards its own work over its own pool, so each product runs on one BLAS
  thread. `one_thread()` sets that for the time of a run and restores what it found.
* **Thin products.** A recurrent step multiplies few rows by a large weight. OpenBLAS then spends
  more time packing the weight than multiplying: 20 x 256 x 1024 in float32 reaches 50 GFLOP/s where
  the core can do 115. Its AVX-512 build has kernels that need no packing, for products of at most
  10^6 multiply-adds; cutting the columns into tiles below that bound keeps every tile on them, and
  NumPy multiplies a stack of tiles in one call. Measured on a Zen 4 core: 51 -> 106 GFLOP/s.
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

Array = np.ndarray[Any, np.dtype[Any]]

# OpenBLAS, kernel/x86_64/sgemm_small_kernel_permit_skylakex.c: M*N*K above this is packed.
SMALL_PRODUCT = 1_000_000
# Narrower tiles of a strided weight lose more to cache conflicts than packing costs (measured).
NARROWEST_TILE = 64


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
def tile_width(rows: int, inner: int, columns: int) -> int:
    """Widest tile that divides `columns` and needs no packing; 0 if none is worth it."""
    if rows < 2 or rows * inner * columns <= SMALL_PRODUCT:
        return 0
    widest = SMALL_PRODUCT // (rows * inner)
    narrowest = NARROWEST_TILE if columns > 512 else 32
    for width in range(min(widest, columns), narrowest - 1, -1):
        if columns % width == 0:
            return width
    return 0


def matmul(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, for a (M, K), b (K, N) of any strides and a C-contiguous-row `out` (M, N).

    Thin float32 products run tile by tile where that is faster (see above).
    """
    rows, inner = a.shape
    if out.dtype == np.float32 and rows < 128 and has_small_products():
        columns = out.shape[1]
        width = tile_width(rows, inner, columns)
        if width and b.strides[1] == 4 and out.flags.c_contiguous:
            tiles = columns // width
            np.matmul(
                a,
                b.reshape(inner, tiles, width).transpose(1, 0, 2),
                out=out.reshape(rows, tiles, width).transpose(1, 0, 2),
            )
            return
    np.matmul(a, b, out=out)


def matmul_planes(a: Array, b: Array, out: Array) -> None:
    """out[k] = a @ b[k], for a (M, K), b (P, K, N), out (P, M, N); thin products tiled."""
    planes, inner, columns = b.shape
    rows = a.shape[0]
    if rows < 128 and out.dtype == np.float32 and has_small_products():
        width = tile_width(rows, inner, columns)
        if width:
            tiles = columns // width
            np.matmul(
                a,
                b.reshape(planes, inner, tiles, width).transpose(0, 2, 1, 3),
                out=out.reshape(planes, rows, tiles, width).transpose(0, 2, 1, 3),
            )
            return
    np.matmul(a, b, out=out)


def matmul_sum(a: Array, b: Array, scratch: Array, out: Array) -> None:
    """out = Σ_k a[k] @ b[k], for a (P, M, K), b (P, K, N), scratch (P, M, N), out (M, N)."""
    planes, inner, columns = b.shape
    rows = a.shape[1]
    width = 0
    if rows < 128 and out.dtype == np.float32 and has_small_products():
        width = tile_width(rows, inner, columns)
    if width:
        tiles = columns // width
        np.matmul(
            a[:, None],
            b.reshape(planes, inner, tiles, width).transpose(0, 2, 1, 3),
            out=scratch.reshape(planes, rows, tiles, width).transpose(0, 2, 1, 3),
        )
    else:
        np.matmul(a, b, out=scratch)
    np.add.reduce(scratch, axis=0, out=out)


def matmul_rows(a: Array, b: Array, out: Array) -> None:
    """`out = a @ b` with the rows of `a` shared between threads."""
    shards = parallel.shards(a.shape[0], least=64)
    if len(shards) == 1:
        matmul(a, b, out)
        return
    parallel.run([partial(matmul, a[s:e], b, out[s:e]) for s, e in shards])


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
