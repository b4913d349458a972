"""`kernels.blas` in C: products of packed panels.

A row of a product has the same bits whatever rows, columns and threads it is computed with; so has
a sum over all rows for any number of threads.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.blas import LARGE_PRODUCT, WORTH_A_THREAD, is_batch_invariant, shares
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import of_precisions
from dynbatch.kernels.packed import packed_weights, panel_spans, words_of
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import FULL, of_products
from dynbatch.kernels.runtime.tasks import is_writing, share
from dynbatch.ragged import Ragged

_libraries = of_precisions("blas.c")


def instruction(precision: str) -> str:
    """The processor's instruction that multiplies rounded factors; "" where none does."""
    functions, flag = _libraries[precision].functions(np.dtype(np.float32)), np.zeros(1, np.int64)
    if functions is not None:
        functions.find_instruction(address(flag))
    return "AVX512_BF16" if flag[0] else ""


def matmul(a: Array, b: Array, out: Array) -> Any:
    return _multiply(a, b, out)


def matmul_rows(a: Array, b: Array, out: Array, bias: Array | None = None) -> Any:
    return _multiply(a, b, out, is_shared=True, base=bias)


def matmul_shared(a: Array, b: Array, out: Array) -> Any:
    return _multiply(a, b, out, is_shared=True)


def matmul_outer(x: Array, dy: Array, out: Array, add: bool = False) -> Any:
    return _multiply(dy.T, x, out, is_shared=True, base=out if add else None)


def _multiply(
    a: Array, b: Array, out: Array, is_shared: bool = False, base: Array | None = None
) -> Any:
    """out = a b + base.

    Args:
        is_shared: between threads, where that pays.
        base:  a row, `out` itself, or None, which is zero.
    """
    precision, size = of_products(), out.itemsize
    functions = _libraries[precision].functions(out.dtype)
    (rows, columns), inner = out.shape, a.shape[1]
    side_by_side = out.strides[-1] == size or columns < 2
    fits = base is None or base is out or (base.flags.c_contiguous and base.dtype == out.dtype)
    short_a, short_b = [x.dtype == np.uint16 and size == 4 for x in (a, b)]
    fits = fits and side_by_side and (short_a or a.dtype == out.dtype)
    fits = fits and (short_b or b.dtype == out.dtype)
    if functions is None or not fits:
        return NotImplemented
    work = rows * inner * columns
    if work > LARGE_PRODUCT and not is_batch_invariant() and precision == FULL and not short_b:
        return NotImplemented  # BLAS has no product of rounded factors
    row_a, term_a = a.strides[0] // a.itemsize, a.strides[1] // a.itemsize
    term_b, column_b = b.strides[0] // b.itemsize, b.strides[1] // b.itemsize
    row_out = out.strides[0] // size
    row_base = row_out if base is out else 0
    at_a, at_b, at_out, at_base = (
        address(a) or 0, address(b) or 0, address(out) or 0, address(base) or 0,
    )  # fmt: skip

    def part(top: int, bottom: int, left: int, right: int) -> tuple[int, ...]:
        return (
            bottom - top, inner, right - left,
            at_a + top * row_a * a.itemsize, short_a, row_a, term_a,
            at_b + left * column_b * b.itemsize, short_b, term_b, column_b,
            at_base and at_base + (top * row_base + left) * size, row_base,
            at_out + (top * row_out + left) * size, row_out,
        )  # fmt: skip

    count = min(parallel.available(), work // WORTH_A_THREAD) if is_shared else 1
    panels = _panels_of(b, functions) if term_a == 1 and not short_a else None
    if panels is not None:
        start = address(panels) or 0
        parts = [
            (rows, inner, last - first, at_a, row_a, start + words_of(inner) * first * size,
             at_base and at_base + first * size, row_base, at_out + first * size, row_out)
            for first, last in panel_spans(columns, max(1, count))
        ]  # fmt: skip
        share(functions.panel_product, parts)
    elif count < 2:
        share(functions.products, [part(0, rows, 0, columns)])
    elif rows >= columns:
        edges = [rows * k // count for k in range(count + 1)]
        share(functions.products, [part(*span, 0, columns) for span in itertools.pairwise(edges)])
    else:
        spans = panel_spans(columns, count)
        share(functions.products, [part(0, rows, *span) for span in spans])
    return None


def _panels_of(b: Array, functions: Any) -> Array | None:
    """A weight that is packed for products that come again; None where nothing is.

    One in 16 bits is packed at once: what it was read from is needed no longer then.
    """
    packed = packed_weights() if is_writing() or b.dtype == np.uint16 else None
    return None if packed is None else packed.panels_of(b, functions)


def matmul_segments(
    a: Ragged, b: Ragged, out: Ragged, transpose_a: bool = False, transpose_b: bool = False
) -> Any:
    arrays = a.values, b.values, out.values
    functions = _libraries[FULL].functions(out.values.dtype)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    rows, columns = np.array(out.lengths, np.int64), out.every_width
    inner = np.array(a.lengths, np.int64) if transpose_a else a.every_width
    starts = [ragged.starts[:-1] for ragged in (a, b, out)]
    table = np.column_stack([*starts, rows, inner, columns])
    rest = (address(table), transpose_a, transpose_b, *[address(array) for array in arrays])
    spans = shares(rows * inner * columns)
    share(functions.segments, [(*span, *rest) for span in spans])
    return None
