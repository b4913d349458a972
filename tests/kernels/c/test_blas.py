"""`kernels.blas` in C against NumPy; `tests/kernels/test_blas.py` runs both on the same cases."""

from __future__ import annotations

import numpy as np
import pytest

import dynbatch as db
from dynbatch.backend import Array
from dynbatch.errors import ArgumentError
from dynbatch.kernels import blas
from dynbatch.kernels.c.runtime.library import reason, reference_only
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import c_version
from dynbatch.kernels.runtime.precision import multiplying, round_to, upper_halves, widened
from dynbatch.ragged import Ragged

pytestmark = pytest.mark.skipif(bool(reason()), reason="C kernels do not run here")
DTYPES = [np.float32, np.float64]


def arrays(dtype: type, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company_and_for_any_threads(
    dtype: type, same_threads: None
) -> None:
    x, weight = arrays(dtype, (301, 130), (515, 130))
    for factor in (weight.T, np.ascontiguousarray(weight.T)):
        parallel.set_num_threads(1)
        whole = np.empty((301, 515), dtype)
        blas.matmul_rows(x, factor, whole)
        parallel.set_num_threads(2)
        for rows in [slice(0, 301), slice(0, 1), slice(7, 8), slice(33, 120), slice(290, 301)]:
            for product in (blas.matmul, blas.matmul_rows, blas.matmul_shared):
                own = np.empty_like(whole[rows])
                product(x[rows], factor, own)
                assert own.tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "columns"), [(600, 77), (256, 16), (33, 5), (1, 40), (0, 20)])
def test_few_rows_by_a_weight_have_the_bits_of_many(dtype: type, inner: int, columns: int) -> None:
    x, weight = arrays(dtype, (40, inner), (columns, inner))
    bias = np.arange(columns, dtype=dtype)
    many, plain = np.empty((2, 40, columns), dtype)
    blas.matmul_rows(x, weight.T, many, bias)
    blas.matmul_rows(x, weight.T, plain)
    np.testing.assert_allclose(many, x @ weight.T + bias, 1e-4, 1e-4)
    for rows in [*range(1, 20), 31, 32, 33]:
        few, wide = np.zeros((rows, columns), dtype), np.zeros((rows, columns + 3), dtype)
        blas.matmul_rows(x[:rows], weight.T, few, bias)
        blas.matmul_rows(x[:rows], weight.T, wide[:, :columns])
        assert few.tobytes() == many[:rows].tobytes()
        assert wide[:, :columns].tobytes() == plain[:rows].tobytes() and not wide[:, columns:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
def test_a_sum_over_all_rows_has_the_same_bits_for_any_threads(
    dtype: type, add: bool, same_threads: None
) -> None:
    x, dy, before = arrays(dtype, (700, 130), (700, 140), (140, 130))
    found = []
    for threads in (1, 2, 3):
        parallel.set_num_threads(threads)
        out = before.copy()
        blas.matmul_outer(x, dy, out, add=add)
        found.append(out.tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)])
def test_each_segment_has_its_own_product(dtype: type, turned: tuple[bool, bool]) -> None:
    rows, inner, columns = [3, 0, 1, 40, 7, 7, 5], [4, 3, 0, 33, 9, 9, 1], [2, 5, 3, 70, 16, 16, 1]
    lefts, rights = [inner, rows] if turned[0] else [rows, inner], [inner, columns]
    rights = rights[::-1] if turned[1] else rights
    a, b, out = (
        Ragged(arrays(dtype, (int(np.dot(*sizes)),))[0], sizes[0], widths=sizes[1])
        for sizes in (lefts, rights, (rows, columns))
    )
    blas.matmul_segments(a, b, out, *turned)
    for k in range(len(rows)):
        left, right = a[k].T if turned[0] else a[k], b[k].T if turned[1] else b[k]
        np.testing.assert_allclose(out[k], left @ right, 1e-5, 1e-5)
        own = Ragged(np.empty(rows[k] * columns[k], dtype), [rows[k]], widths=[columns[k]])
        part = [Ragged(r[k].ravel(), [r.lengths[k]], widths=[r.widths[k]]) for r in (a, b)]
        blas.matmul_segments(*part, own, *turned)
        assert own.values.tobytes() == out[k].tobytes()


def test_a_large_product_may_go_to_openblas() -> None:
    a, b = arrays(np.float32, (270, 512), (512, 512))
    found, other = np.empty((2, 270, 512), np.float32)
    try:
        db.set_batch_invariant(False)
        assert c_version(blas.matmul)(a, b, found) is NotImplemented
        blas.matmul(a, b, found)
        with reference_only():
            blas.matmul(a, b, other)
        assert found.tobytes() == other.tobytes()
        assert c_version(blas.matmul)(a[:20], b, found[:20]) is not NotImplemented  # it is small
    finally:
        db.set_batch_invariant(True)
    assert c_version(blas.matmul)(a, b, other) is not NotImplemented
    assert found[:20].tobytes() == other[:20].tobytes()


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_a_large_product_of_rounded_factors_stays_here(precision: str) -> None:
    a, b = arrays(np.float32, (270, 512), (512, 512))
    found, other = np.empty((2, 270, 512), np.float32)
    with multiplying(precision):
        blas.matmul(a, b, other)
        try:
            db.set_batch_invariant(False)
            blas.matmul(a, b, found)
        finally:
            db.set_batch_invariant(True)
    assert found.tobytes() == other.tobytes()


def test_whether_bits_are_kept_is_true_or_false() -> None:
    with pytest.raises(ArgumentError, match="set_batch_invariant: wanted is 1"):
        db.set_batch_invariant(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(("inner", "columns"), [(1100, 77), (600, 600), (33, 5), (1, 40), (0, 20)])
def test_factors_in_16_bits_give_the_bits_of_their_numbers(
    precision: str, inner: int, columns: int, same_threads: None
) -> None:
    x, weight = arrays(np.float32, (101, inner), (columns, inner))
    weight.reshape(-1)[:4] = np.float32([np.inf, np.nan, 1e-40, -0.0])[: weight.size]
    rounded = round_to(x, "bfloat16")
    halves, short_x = upper_halves(round_to(weight, "bfloat16")), upper_halves(rounded)
    bias = np.arange(columns, dtype=np.float32)
    found, expected = np.empty((2, 101, columns), np.float32)
    layouts = [(halves.T, widened(halves).T)]
    layouts += [(np.ascontiguousarray(short), np.ascontiguousarray(b)) for short, b in layouts]
    with multiplying(precision):
        for short, b in layouts:
            for rows in (1, 7, 12, 101):
                blas.matmul_rows(x[:rows], b, expected[:rows], bias)
                blas.matmul_rows(x[:rows], short, found[:rows], bias)
                np.testing.assert_array_equal(found[:rows], expected[:rows])
                blas.matmul_rows(rounded[:rows], b, expected[:rows], bias)
                for factor in (b, short):
                    blas.matmul_rows(short_x[:rows], factor, found[:rows], bias)
                    np.testing.assert_array_equal(found[:rows], expected[:rows])
            with reference_only():
                blas.matmul_rows(short_x, short, found, bias)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
