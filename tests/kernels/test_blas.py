import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.kernels import blas

# Shapes whose columns divide into tiles, some that do not (prime columns), and degenerate ones.
SHAPES = [
    (20, 256, 1024), (2, 1024, 768), (127, 64, 515), (60, 256, 257), (128, 128, 512),
    (7, 300, 1000), (1, 256, 1024), (0, 8, 64), (3, 0, 5), (3, 4, 0), (33, 500, 96), (5, 5, 5),
]  # fmt: skip


@pytest.fixture(autouse=True, params=[True, False], ids=["tiled", "plain"])
def small_products(request, monkeypatch):
    """Both paths, whatever this machine's BLAS would take."""
    monkeypatch.setattr(blas, "has_small_products", lambda: request.param)


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


@pytest.mark.parametrize("planes", [1, 4])
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_matmul_planes_equals_numpy_also_into_a_part(planes, rows, inner, columns):
    a, b = arrays((rows, inner), (planes, inner, columns))
    whole = np.full((planes, rows + 2, columns), np.nan, np.float32)
    blas.matmul_planes(a, b, whole[:, 1 : rows + 1])
    assert_close(whole[:, 1 : rows + 1], a @ b, inner)
    assert np.isnan(whole[:, [0, -1]]).all()


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_matmul_sum_equals_numpy(rows, inner, columns):
    a, b = arrays((3, rows, inner), (3, inner, columns))
    scratch, out = np.empty((3, rows, columns), np.float32), np.empty((rows, columns), np.float32)
    blas.matmul_sum(a, b, scratch, out)
    assert_close(out, (a @ b).sum(axis=0), 3 * inner)


@pytest.mark.parametrize("rows", [0, 1, 63, 200, 1001])
def test_rows_and_outer_products_equal_numpy_whatever_the_shards(rows):
    for inner, columns in ((130, 40), (40, 130)):
        x, weight, dy = arrays((rows, inner), (inner, columns), (rows, columns))
        y, dw = np.empty((rows, columns), np.float32), np.empty((columns, inner), np.float32)
        blas.matmul_rows(x, weight, y)
        assert_close(y, x @ weight, inner)
        blas.matmul_outer(x, dy, dw)
        assert_close(dw, dy.T @ x, rows)


@given(st.integers(0, 200), st.integers(0, 2000), st.integers(0, 2000))
def test_a_tile_divides_the_columns_and_needs_no_packing(rows, inner, columns):
    block, width = blas.tiling(rows, inner, columns)
    if width:
        assert columns % width == 0
        assert 0 < block <= rows
        assert block * inner * width <= blas.SMALL_PRODUCT < rows * inner * columns


def test_one_thread_restores_what_it_found():
    get, put = blas._function_pair()
    if get is None or put is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    before = get()
    put(2)
    with blas.one_thread():
        assert get() == 1
    assert get() == 2
    with pytest.raises(KeyError), blas.one_thread():
        raise KeyError
    assert get() == 2
    put(before)


def test_the_kernels_of_openblas_have_a_name():
    assert blas.core_name()
