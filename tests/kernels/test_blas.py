import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.kernels import blas
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import SHORT, multiplying, round_to, upper_halves, widened

# Shapes whose columns divide into tiles, some that do not (prime columns), and degenerate ones.
SHAPES = [
    (20, 256, 1024), (2, 1024, 768), (127, 64, 515), (60, 256, 257), (128, 128, 512),
    (7, 300, 1000), (1, 256, 1024), (0, 8, 64), (3, 0, 5), (3, 4, 0), (33, 500, 96), (5, 5, 5),
]  # fmt: skip


@pytest.fixture(autouse=True, params=["c", "tiled", "plain"])
def path(request, monkeypatch):
    """All paths, whatever this machine's BLAS would take."""
    monkeypatch.setattr(blas, "has_small_products", lambda: request.param == "tiled")
    with nullcontext() if request.param == "c" else reference_only():
        yield


def arrays(*shapes, dtype=np.float32):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]


def assert_close(found, expected, inner):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * (1 + inner))


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul_equals_numpy(rows, inner, columns, dtype):
    a, b = arrays((rows, inner), (inner, columns), dtype=dtype)
    out = np.full((rows, columns), np.nan, dtype)
    blas.matmul(a, b, out)
    assert_close(out, a @ b, inner)


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_matmul_takes_transposed_and_strided_operands(rows, inner, columns):
    a, b = arrays((inner, rows * 2), (columns, inner))
    wide = np.full((rows, columns + 3), np.nan, np.float32)
    blas.matmul(a[:, ::2].T, b.T, wide[:, :columns])
    assert_close(wide[:, :columns], a[:, ::2].T @ b.T, inner)
    assert np.isnan(wide[:, columns:]).all()


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_matmul_equals_numpy_also_into_a_part(rows, inner, columns):
    a, b = arrays((rows, inner), (inner, columns))
    whole = np.full((rows + 2, columns), np.nan, np.float32)
    blas.matmul(a, b, whole[1 : rows + 1])
    assert_close(whole[1 : rows + 1], a @ b, inner)
    assert np.isnan(whole[[0, -1]]).all()


@pytest.mark.parametrize("rows", [0, 1, 63, 200, 1001])
def test_rows_and_outer_products_equal_numpy_whatever_the_shards(rows):
    for inner, columns in ((130, 40), (40, 130)):
        x, weight, dy = arrays((rows, inner), (inner, columns), (rows, columns))
        y, dw = np.empty((rows, columns), np.float32), np.empty((columns, inner), np.float32)
        blas.matmul_rows(x, weight, y)
        assert_close(y, x @ weight, inner)
        blas.matmul_outer(x, dy, dw)
        assert_close(dw, dy.T @ x, rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(200, 130, 40), (40, 30, 1300), (0, 3, 5)])
def test_matmul_shared_equals_numpy_whatever_the_shards(
    same_threads, threads, rows, inner, columns
):
    parallel.set_num_threads(threads)
    a, b = arrays((rows, inner), (columns, inner))
    out = np.full((rows, columns), np.nan, np.float32)
    blas.matmul_shared(a, b.T, out)
    assert_close(out, a @ b.T, inner)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(900, 130, 40), (40, 90, 1300), (0, 3, 5)])
def test_a_bias_is_added_to_each_row_whatever_the_shards(
    same_threads, threads, rows, inner, columns
):
    parallel.set_num_threads(threads)
    a, b, bias = arrays((rows, inner), (columns, inner), (2, columns))
    out = np.full((rows, columns), np.nan, np.float32)
    for row in (bias[1], np.asfortranarray(bias)[1]):
        blas.matmul_rows(a, b.T, out, row)
        assert_close(out, a @ b.T + bias[1], inner)


# (N, I, O) of x (N, I) and dy (N, O): wide, tall, more than one slice, one row or column, nothing.
OUTER = [(20, 130, 40), (20, 40, 130), (3, 300, 900), (7, 1, 5), (7, 5, 1), (1, 6, 7), (0, 4, 3)]


@pytest.mark.parametrize("has_gemm", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "inner", "columns"), OUTER)
def test_an_outer_product_adds(
    monkeypatch, same_threads, rows, inner, columns, dtype, threads, has_gemm
):
    parallel.set_num_threads(threads)
    if not has_gemm:
        monkeypatch.setattr(blas, "gemm", lambda dtype: None)
    x, dy, before = arrays((rows, inner), (rows, columns), (columns, inner), dtype=dtype)
    expected = before + dy.astype(np.float64).T @ x
    out = before.copy()
    blas.matmul_outer(x, dy, out, add=True)
    np.testing.assert_allclose(
        out, expected, rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-5
    )


@pytest.mark.parametrize("has_gemm", [True, False])
def test_an_outer_product_adds_to_and_of_parts_of_wider_matrices(monkeypatch, has_gemm):
    if not has_gemm:
        monkeypatch.setattr(blas, "gemm", lambda dtype: None)
    wide_x, wide_dy, wide = arrays((9, 12), (9, 20), (8, 11))
    before = wide.copy()
    x, dy, out = wide_x[:, 3:8], wide_dy[:, 2:18:2], wide[:, 4:9]
    for factor in (dy, np.ascontiguousarray(dy), wide_dy[:, 2:10]):
        wide[...] = before
        blas.matmul_outer(x, factor, out, add=True)
        assert_close(out, before[:, 4:9] + factor.T @ x, 9)
        wide[:, 4:9] = before[:, 4:9]
        assert (wide == before).all()
    wide[...] = before
    backwards = np.ascontiguousarray(x[::-1])[::-1]
    blas.matmul_outer(backwards, dy, out, add=True)
    assert_close(out, before[:, 4:9] + dy.T @ x, 9)


@pytest.mark.parametrize("has_gemm", [True, False])
def test_what_is_added_takes_no_memory_of_its_size(monkeypatch, one_thread, has_gemm):
    if not has_gemm:
        monkeypatch.setattr(blas, "gemm", lambda dtype: None)
    x, dy, out = arrays((2, 256), (2, 8192), (8192, 256))
    blas.gemm("f")
    tracemalloc.start()
    try:
        blas.matmul_outer(x, dy, out, add=True)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 4 * blas.ADDED_SLICE + 10_000 < out.nbytes / 10


@given(st.integers(0, 200), st.integers(0, 2000), st.integers(0, 2000))
def test_a_tile_divides_the_columns_and_needs_no_packing(rows, inner, columns):
    block, width = blas.tiling(rows, inner, columns)
    if width:
        assert columns % width == 0
        assert 0 < block <= rows
        assert block * inner * width <= blas.SMALL_PRODUCT < rows * inner * columns


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [blas.matmul, blas.matmul_rows, blas.matmul_shared])
def test_in_fixed_rows_a_row_has_the_same_bits_beside_any_others(kernel, dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((21, 70)).astype(dtype), rng.standard_normal((70, 130)).astype(dtype)
    with reference_only(), blas.fixed_rows():
        whole = np.empty((21, 130), dtype)
        kernel(a, b, whole)
        np.testing.assert_allclose(whole, a @ b, rtol=1e-4, atol=1e-5)
        for first, last in [(0, 1), (5, 6), (13, 21), (2, 20)]:
            part = np.empty((last - first, 130), dtype)
            kernel(a[first:last], b, part)
            assert part.tobytes() == whole[first:last].tobytes()
    assert not blas.has_fixed_rows()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_in_fixed_rows_a_product_with_a_vector_has_the_same_bits_beside_any_others(dtype):
    rng = np.random.default_rng(0)
    rows, vector = rng.standard_normal((21, 70)).astype(dtype), rng.standard_normal(70)
    whole = np.empty(21, dtype)
    with blas.fixed_rows():
        blas.dot_rows(rows, vector.astype(dtype), whole)
        np.testing.assert_allclose(whole, rows @ vector, rtol=1e-4, atol=1e-5)
        for first, last in [(0, 1), (5, 6), (13, 21), (2, 20)]:
            part = np.empty(last - first, dtype)
            blas.dot_rows(rows[first:last], vector.astype(dtype), part)
            assert part.tobytes() == whole[first:last].tobytes()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("inner", [1, 3, 17, 256, 259])
def test_a_weight_in_16_bits_is_multiplied_by_as_its_numbers_are(inner, precision):
    rng = np.random.default_rng(inner)
    for rows, columns in [(0, 3), (1, 1), (1, 65), (3, 17), (17, 130)]:
        x, bias = [rng.standard_normal(shape, np.float32) for shape in ((rows, inner), (columns,))]
        halves = upper_halves(
            round_to(rng.standard_normal((inner + 2, columns + 3), np.float32), SHORT)
        )
        for order in "CF":  # a whole weight, or its transpose; and a part of either
            whole = np.array(halves[1:-1, 2:-1], order=order)
            for weight in (whole, np.array(halves, order=order)[1:-1, 2:-1]):
                found = np.full((2, rows, columns), np.nan, np.float32)
                for numbers, out in zip((widened(weight), weight), found, strict=True):
                    with multiplying(precision):
                        blas.matmul_rows(x, numbers, out, bias)
                assert found[0].tobytes() == found[1].tobytes()
