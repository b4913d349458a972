"""`product.h`, the products of packed panels that all C code uses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, row_stride
from dynbatch.kernels.c.runtime.library import Library
from tests.marks import needs_compiler

pytestmark = needs_compiler

BODY = """
#include "product.h"
EXPORT void pack(ptrdiff_t K, ptrdiff_t N, const REAL* b, ptrdiff_t row, ptrdiff_t column,
    REAL* panels) {
    pack_panels(0, (N + PANEL - 1) / PANEL, K, N, b, 0, row, column, panels);
}
EXPORT void multiply(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    product(M, K, N, a, lda, panels, base, base_stride, c, ldc);
}
"""
library = Library("test_product", BODY)
DTYPES = [np.float32, np.float64]
SIZES = [(1, 1, 1), (0, 3, 4), (5, 0, 3), (7, 3, 64), (13, 513, 65), (97, 1030, 130), (30, 20, 47)]


def multiply(a: Array, b: Array, c: Array, base: Array | None = None) -> None:
    functions = library.functions(a.dtype)
    assert isinstance(functions, SimpleNamespace)
    (inner, columns), size = b.shape, b.itemsize
    panels = np.empty(inner * (columns + 15), b.dtype)
    functions.pack(
        inner, columns, address(b), b.strides[0] // size, b.strides[1] // size, address(panels)
    )
    step = 0 if base is None or base.ndim == 1 else row_stride(base)
    functions.multiply(
        len(a), inner, columns, address(a), row_stride(a), address(panels), address(base), step,
        address(c), row_stride(c),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_product_is_added_to_what_is_given(
    sizes: tuple[int, int, int], order: str, dtype: type
) -> None:
    rows, inner, columns = sizes
    rng = np.random.default_rng(1)
    a = rng.standard_normal((rows, inner + 2)).astype(dtype)[:, :inner]
    b = np.asarray(rng.standard_normal((inner, columns)).astype(dtype), order=order)
    wide = np.full((rows, columns + 3), 7, dtype)
    c = wide[:, :columns]
    bias = rng.standard_normal(columns).astype(dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = (1e-5 if dtype == np.float32 else 1e-12) * max(1, inner) ** 0.5
    multiply(a, b, c)
    np.testing.assert_allclose(c, expected, 0, tolerance)
    multiply(a, b, c, bias)
    np.testing.assert_allclose(c, expected + bias, 0, tolerance)
    multiply(a, b, c, c)
    np.testing.assert_allclose(c, 2 * expected + bias, 0, 2 * tolerance)
    assert (wide[:, columns:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype: type) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((211, 600)).astype(dtype), rng.standard_normal((600, 77))
    c = np.empty((211, 77), dtype)
    multiply(a, b.astype(dtype), c)
    for first, last in [(0, 1), (3, 5), (90, 103), (5, 205), (210, 211)]:
        own = np.empty((last - first, 77), dtype)
        multiply(a[first:last], b.astype(dtype), own)
        assert own.tobytes() == c[first:last].tobytes()
