"""Matrix products, with two features that NumPy lacks:

* **Products in tiles.** OpenBLAS packs both operands before it multiplies. For a recurrent step,
  few rows by a large weight, packing takes longer: 20 x 256 x 1024 in float32 reaches 51 GFLOP/s
  where the core can do 115, and even 1421 x 128 x 1024 stays at 92. Its AVX-512 build has
  kernels that need no packing, for products of at most 10^6 multiply-adds. A product cut into tiles
  below that bound stays on them, and NumPy multiplies a stack of tiles in one call: 112 and 109
  GFLOP/s (one Zen 4 core).
* **Products that add.** BLAS can add a product to what is there; NumPy's `matmul` cannot, and a
  sum beside it takes memory as large as the result. `matmul_outer(..., add=True)` calls OpenBLAS
  itself, or without it adds slice by slice.

Those with weights, all but `matmul_segments`, round their factors where the run asks for that
(`kernels.runtime.precision`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import numpy as np

from dynbatch.arguments import switch
from dynbatch.backend import Array, DType
from dynbatch.kernels.arrays import add_bias
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.runtime.openblas import PLAIN, ROW_MAJOR, TRANSPOSED, gemm, has_small_products
from dynbatch.kernels.runtime.precision import rounded, widened
from dynbatch.ragged import Ragged, offsets_of
from dynbatch.recent import free_at_fork

# OpenBLAS, kernel/x86_64/sgemm_small_kernel_permit_skylakex.c: M*N*K above this is packed.
SMALL_PRODUCT = 1_000_000
# Narrower tiles of a strided weight lose more to cache conflicts than packing costs (measured); so
# do any tiles of a very wide one.
NARROWEST_TILE = 64
WIDEST_PRODUCT = 2048
# Rows of a tile, the first that leaves room for wide enough tiles.
ROW_BLOCKS = (48, 32, 24, 16)
# Multiply-adds of ragged products that are worth a thread.
WORTH_A_THREAD = 1 << 21
# Multiply-adds of products that go to OpenBLAS where rows need not have the same bits everywhere.
LARGE_PRODUCT = 1 << 26
# Elements of a product that is added slice by slice: what the second-level cache holds.
ADDED_SLICE = 1 << 17

# Rows of a tile where a row must have the same bits beside any others: the more, the faster, but
# from 16 on OpenBLAS (Haswell) treats the rows of a tile in two ways.
FIXED_ROWS = 8

_settings = {"batch_invariant": True}
_users = {"fixed_rows": 0}
_lock = free_at_fork(threading.Lock())


def set_batch_invariant(wanted: bool) -> None:
    """Whether a sentence's numbers have the same bits in every mini-batch, in all graphs.

    By default they have, where C kernels run (see `db.backends`): values, losses, and gradients of
    inputs do not depend on which other sentences are computed with one, nor on their number.

    With False, products of more than 2^26 multiply-adds go to the BLAS of NumPy, which may be
    faster on some processors. It chooses how to add by the size of the whole product, so the last
    bits of a row may then depend on the rows beside it. Measure: on many processors ours is faster.

    Raises:
        ArgumentError: it is neither True nor False.
    """
    _settings["batch_invariant"] = switch("set_batch_invariant", "wanted", wanted)


def is_batch_invariant() -> bool:
    """The last setting of `set_batch_invariant`."""
    return _settings["batch_invariant"]


@contextmanager
def fixed_rows() -> Iterator[None]:
    """Multiply rows in tiles of `FIXED_ROWS` inside, in all threads, where C kernels do not run.

    BLAS chooses how to add by the size of a product. In tiles of one size, filled up with zeros, a
    row has the same bits beside any others, if BLAS treats all rows of a tile alike: test it.
    """
    with _lock:
        _users["fixed_rows"] += 1
    try:
        yield
    finally:
        with _lock:
            _users["fixed_rows"] -= 1


def has_fixed_rows() -> bool:
    """Whether some thread is inside `fixed_rows`."""
    return _users["fixed_rows"] > 0


@cache
def tiling(rows: int, inner: int, columns: int) -> tuple[int, int]:
    """The tile size (rows, columns) with which no product of tiles needs packing.

    (0, 0) if the product needs no packing as a whole, or if tiles would not pay.
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


@kernel(c=HOST, cuda=HOST)
def matmul(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, for a (M, K), b (K, N), out (M, N); float32 in tiles where that is faster.

    a or b may be upper halves: a copy in float32 then lives as long as the product takes. C reads
    halves where they lie.
    """
    a, b = rounded(widened(a)), rounded(widened(b))
    if has_fixed_rows():
        _matmul_fixed_rows(a, b, out)
        return
    if out.dtype != np.float32 or b.strides[1] != 4 or out.strides[1] != 4:
        np.matmul(a, b, out=out)
        return
    rows, inner = a.shape
    block, width = tiling(rows, inner, b.shape[1]) if has_small_products() else (0, 0)
    if not block:
        np.matmul(a, b, out=out)
        return
    whole = rows - rows % block
    _matmul_tiles(a[:whole], b, out[:whole], block, width)
    if whole < rows:
        _matmul_tiles(a[whole:], b, out[whole:], rows - whole, width)


def _matmul_fixed_rows(a: Array, b: Array, out: Array) -> None:
    rows, inner = a.shape
    whole = rows - rows % FIXED_ROWS
    if whole:
        tiles = a[:whole].reshape(-1, FIXED_ROWS, inner)
        np.matmul(tiles, b, out=out[:whole].reshape(*tiles.shape[:2], b.shape[1]))
    if whole < rows:
        rest = np.zeros((FIXED_ROWS, inner), a.dtype)
        rest[: rows - whole] = a[whole:]
        out[whole:] = np.matmul(rest, b)[: rows - whole]


def _matmul_tiles(a: Array, b: Array, out: Array, block: int, width: int) -> None:
    """One call of NumPy for a stack of products of (block, K) by (K, width)."""
    inner, columns = b.shape
    tiles, blocks = columns // width, len(a) // block
    np.matmul(
        a.reshape(blocks, 1, block, inner),
        b.reshape(inner, tiles, width).transpose(1, 0, 2),
        out=out.reshape(blocks, block, tiles, width).transpose(0, 2, 1, 3),
    )


@kernel(c=HOST, cuda=HOST)
def matmul_rows(a: Array, b: Array, out: Array, bias: Array | None = None) -> None:
    """`out = a @ b + bias` with the rows of `a` shared between threads; `bias` is (N,)."""
    shards = parallel.shards(a.shape[0], least=64)
    if len(shards) == 1:
        matmul(a, b, out)
    else:
        parallel.run([partial(matmul, a[s:e], b, out[s:e]) for s, e in shards])
    if bias is not None:
        add_bias(out, bias)


@kernel(c=HOST, cuda=HOST)
def matmul_shared(a: Array, b: Array, out: Array) -> None:
    """`out = a @ b` with the longer side of `out` shared between threads."""
    if out.shape[0] >= out.shape[1] or has_fixed_rows():
        matmul_rows(a, b, out)
        return
    shards = parallel.shards(out.shape[1], least=64)
    parallel.run([partial(matmul, a, b[:, s:e], out[:, s:e]) for s, e in shards])


@kernel(c=HOST, cuda=HOST)
def matmul_outer(x: Array, dy: Array, out: Array, add: bool = False) -> None:
    """out (O, I) = dyᵀ x over all rows: the weight gradient. Threads share its longer side.

    With `add` the product is added to `out`, in memory that does not grow with it.
    """
    x, dy = rounded(widened(x)), rounded(dy)
    product = _add_outer if add else _outer
    by_rows = out.shape[0] >= out.shape[1]
    shards = parallel.shards(max(out.shape), least=64)
    if len(shards) == 1:
        product(x, dy, out)
    elif by_rows:
        parallel.run([partial(product, x, dy[:, s:e], out[s:e]) for s, e in shards])
    else:
        parallel.run([partial(product, x[:, s:e], dy, out[:, s:e]) for s, e in shards])


def _outer(x: Array, dy: Array, out: Array) -> None:
    np.matmul(dy.T, x, out=out)


def _add_outer(x: Array, dy: Array, out: Array) -> None:
    """out += dyᵀ x."""
    multiply = gemm(out.dtype.char)
    arrays = (dy, x, out)
    if multiply is None or not all([_has_rows(array, out.dtype) for array in arrays]):
        _add_outer_in_slices(x, dy, out)
        return
    lds = [array.strides[0] // array.itemsize for array in arrays]
    multiply(
        ROW_MAJOR, TRANSPOSED, PLAIN, *out.shape, len(x), 1, dy.ctypes.data, lds[0],
        x.ctypes.data, lds[1], 1, out.ctypes.data, lds[2],
    )  # fmt: skip


def _add_outer_in_slices(x: Array, dy: Array, out: Array) -> None:
    """out += dyᵀ x, at most `ADDED_SLICE` elements, or one row, at a time."""
    rows = max(1, ADDED_SLICE // max(1, out.shape[1]))
    product = np.empty((min(rows, out.shape[0]), out.shape[1]), out.dtype)
    for start in range(0, out.shape[0], rows):
        part = out[start : start + rows]
        np.matmul(dy[:, start : start + rows].T, x, out=product[: len(part)])
        np.add(part, product[: len(part)], out=part)


def _has_rows(array: Array, dtype: DType) -> bool:
    """Whether BLAS can read a matrix as rows one after the other."""
    rows, columns = array.strides
    size = array.itemsize
    return (
        array.dtype == dtype
        and array.size > 0
        and columns == size
        and rows % size == 0
        and rows >= array.shape[1] * size
    )


def dot_rows(rows: Array, vector: Array, out: Array) -> None:
    """out_i = rows_i · vector, for rows (N, D); in `fixed_rows` each row by itself."""
    (np.vecdot if has_fixed_rows() else np.dot)(rows, vector, out=out)


@kernel("values", c=HOST, cuda=HOST)
def matmul_segments(
    a: Ragged, b: Ragged, out: Ragged, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """out[k] = a[k] @ b[k] for every segment, each factor transposed on request.

    Cost: one call for each run of equal shapes, since NumPy multiplies only such stacks. Threads
        share the segments evenly.
    """
    shapes = [(*a.shape(k), *out.shape(k)) for k in range(len(out))]
    tasks = [
        partial(_matmul_neighbours, a, b, out, transpose_a, transpose_b, shapes, first, end)
        for first, end in shares([rows * width * across for rows, width, _, across in shapes])
    ]
    parallel.run(tasks)


def shares(costs: Sequence[int] | Array) -> list[tuple[int, int]]:
    """Ranges of segments with about equal cost, one for each thread that pays off."""
    ends = offsets_of(costs)
    count = max(1, min(parallel.available(), int(ends[-1]) // WORTH_A_THREAD))
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    return list(itertools.pairwise([0, *edges.tolist(), len(costs)]))


def _matmul_neighbours(
    a: Ragged, b: Ragged, out: Ragged, transpose_a: bool, transpose_b: bool,
    shapes: Sequence[tuple[int, ...]], first: int, end: int,
) -> None:  # fmt: skip
    while first < end:
        last = first + 1
        while last < end and shapes[last] == shapes[first]:
            last += 1
        left, right = _stack(a, first, last, transpose_a), _stack(b, first, last, transpose_b)
        np.matmul(left, right, out=_stack(out, first, last, False))
        first = last


def _stack(x: Ragged, first: int, end: int, transpose: bool) -> Array:
    """Segments of one shape as (segments, rows, width), or (segments, width, rows)."""
    stack = x.flat[x.starts[first] : x.starts[end]].reshape(end - first, *x.shape(first))
    return stack.transpose(0, 2, 1) if transpose else stack
