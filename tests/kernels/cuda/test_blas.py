import numpy as np
import pytest

from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels import blas
from dynbatch.kernels.cuda.blas import segment_entries
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.ragged import Ragged
from tests.cuda import fake_cupy
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

SIZES = [(1, 1, 1), (0, 3, 5), (3, 0, 5), (3, 5, 0), (31, 33, 32), (1, 33, 1), (33, 1, 7)]
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def exercise(kernels):
    """Two rounds over the inner dimension, so that both tiles are written again."""
    x = fake_cupy.zeros((17, 17), np.float32)
    entries = fake_cupy.asarray(np.array([[0, 0, 0, 0, 17, 17, 17, 17, 17]]))
    args = (x, x, fake_cupy.zeros((17, 17), np.float32), entries, 1, False, False)
    kernels.launch("matmul_segments", (1,), (64,), args)


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def values(dtype, *shapes):
    return [Values(normal(dtype, *shape, seed=k)) for k, shape in enumerate(shapes)]


def nothing(dtype, *shape):
    return Values(np.full(shape, np.nan, dtype))


@pytest.mark.parametrize("kernel", [blas.matmul, blas.matmul_rows])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_matmul(cupy, dtype, kernel, m, n, k):
    with launches(int(m * n > 0)):
        assert_versions_agree(
            kernel, *values(dtype, (m, k), (k, n)), nothing(dtype, m, n), **TOLERANCE
        )


@pytest.mark.parametrize("rows", [0, 1, 33])
def test_the_weight_gradient(cupy, dtype, rows):
    x, dy = values(dtype, (rows, 5), (rows, 33))
    assert_versions_agree(blas.matmul_outer, x, dy, nothing(dtype, 33, 5), **TOLERANCE)
    (before,) = values(dtype, (33, 5))
    assert_versions_agree(blas.matmul_outer, x, dy, before, add=True, **TOLERANCE)


def test_a_product_that_threads_would_share(cupy, dtype):
    a, b = values(dtype, (3, 5), (5, 130))
    assert_versions_agree(blas.matmul_shared, a, b, nothing(dtype, 3, 130), **TOLERANCE)


def test_transposed_factors_and_columns_of_wider_matrices(cupy, dtype):
    x, dy, weight = normal(dtype, 7, 12), normal(dtype, 7, 9), normal(dtype, 5, 4)
    wide_x, wide_dy, w = [cupy.asarray(array) for array in (x, dy, weight)]
    out = cupy.asarray(np.full((8, 9), np.nan, dtype))
    blas.matmul(wide_x[:, 3:7], w.T, out[:7, 2:7])
    gradient = cupy.asarray(np.full((6, 4), np.nan, dtype))
    blas.matmul_outer(wide_x[:, 8:], wide_dy[:, 1:6], gradient[:5])
    one = cupy.asarray(np.full((1, 1), np.nan, dtype))
    blas.matmul(wide_dy[2:3, 1:6], w.reshape(-1)[:5].reshape(1, 5).T, one)
    queue().flush()
    tolerance = 1e-5 if dtype == np.float32 else 1e-14
    for found, expected in (
        (out.get()[:7, 2:7], x[:, 3:7] @ weight.T),
        (gradient.get()[:5], dy[:, 1:6].T @ x[:, 8:]),
        (one.get(), dy[2:3, 1:6] @ weight.reshape(-1)[:5, None]),
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert np.isnan(out.get()).sum() == 8 * 9 - 7 * 5
    assert np.isnan(gradient.get()[5]).all()


def test_vectors_of_any_stride(cupy, dtype):
    """A row or column needs no unit stride, and the strides of a single one mean nothing."""
    x, weight = normal(dtype, 6, 5), normal(dtype, 4, 1)
    wide, w = cupy.asarray(x), cupy.asarray(weight)
    column = wide[:, 1::2][:, :1]
    outer, inner, row = (cupy.empty(shape, dtype) for shape in ((6, 4), (1, 1), (1, 4)))
    blas.matmul(column, w.T, outer)
    blas.matmul(column.T, wide[:, 4:], inner)
    blas.matmul(wide[2:3, :1], w.T, row)
    queue().flush()
    tolerance = 1e-5 if dtype == np.float32 else 1e-14
    for found, expected in (
        (outer, x[:, 1:2] @ weight.T), (inner, x[:, 1:2].T @ x[:, 4:]), (row, x[2:3, :1] @ weight.T)
    ):  # fmt: skip
        np.testing.assert_allclose(found.get(), expected, rtol=tolerance, atol=tolerance)


def test_matrices_that_do_not_fit_are_refused(cupy, dtype):
    a, b, out = (cupy.zeros(shape, dtype) for shape in ((2, 3), (3, 4), (2, 4)))
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 4\) into"):
        blas.matmul(a, out, out)
    with pytest.raises(ShapeError, match="into"):
        blas.matmul(a, b, b)
    with pytest.raises(ShapeError, match="strides"):
        blas.matmul(cupy.zeros((2, 6), dtype)[:, ::2], b, out)
    with pytest.raises(ShapeError, match="an output"):
        blas.matmul(a, b, cupy.zeros((4, 2), dtype).T)
    repeated = cupy.ndarray((2, 3), dtype, memptr=a.data, strides=(0, dtype.itemsize))
    with pytest.raises(ShapeError, match="strides"):
        blas.matmul(repeated, b, out)
    other = np.float64 if dtype == np.float32 else np.float32
    with pytest.raises(DtypeError, match="a product of"):
        blas.matmul(a, b, cupy.zeros((2, 4), other))


# Products of matrices of different shapes ---------------------------------------------------------

LENGTHS = (0, 1, 31, 32, 33, 0, 2, 70)


def ragged(dtype, lengths, width, seed=0):
    return Ragged(Values(normal(dtype, sum(lengths), width, seed=seed)), lengths)


def empty(dtype, lengths, width):
    return Ragged(nothing(dtype, sum(lengths), width), lengths)


@pytest.mark.parametrize("width", [1, 33])
@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
def test_segments(cupy, dtype, transposes, width):
    """A segment's own length is its rows, its inner dimension, its columns, or two of them."""
    inner = [4] * len(LENGTHS)
    a, b, out = {
        (False, False): ((LENGTHS, 4), (inner, width), (LENGTHS, width)),
        (False, True): ((LENGTHS, width), (inner, width), (LENGTHS, 4)),
        (True, False): ((LENGTHS, 4), (LENGTHS, width), (inner, width)),
        (True, True): ((inner, 4), ([width] * len(inner), 4), (inner, width)),
    }[transposes]
    with launches(1):
        assert_versions_agree(
            blas.matmul_segments, ragged(dtype, *a), ragged(dtype, *b, seed=1),
            empty(dtype, *out), *transposes, **TOLERANCE,
        )  # fmt: skip


def test_long_inner_dimensions_and_none(cupy, dtype):
    lengths = (1025, 0, 3)
    assert_versions_agree(
        blas.matmul_segments, ragged(dtype, lengths, 2), ragged(dtype, lengths, 3, seed=1),
        empty(dtype, (2, 2, 2), 3), True, rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_segments_without_elements(cupy, dtype):
    with launches(0):
        for lengths, width in (((), 3), ((0, 0), 3), ((4, 1), 0)):
            b = ragged(dtype, [5] * len(lengths), width)
            a, out = ragged(dtype, lengths, 5), empty(dtype, lengths, width)
            assert_versions_agree(blas.matmul_segments, a, b, out)


def test_a_nan_stays_in_its_segment(cupy, dtype):
    a, b = ragged(dtype, LENGTHS, 17), ragged(dtype, [17] * len(LENGTHS), 5, seed=1)
    a.values.array[a.offsets[3]] = np.nan
    b.values.array[b.offsets[6], 2] = np.inf
    *_, out = assert_versions_agree(
        blas.matmul_segments, a, b, empty(dtype, LENGTHS, 5), **TOLERANCE
    )
    assert np.isnan(out).any(axis=1).nonzero()[0].tolist() == [a.offsets[3]]


def test_bits_do_not_depend_on_the_other_segments(cupy, dtype):
    a, b = normal(dtype, sum(LENGTHS), 37), normal(dtype, 37 * len(LENGTHS), 35, seed=1)
    device = [cupy.asarray(array) for array in (a, b)]
    together, alone = (cupy.empty((sum(LENGTHS), 35), dtype) for _ in range(2))
    inner = [37] * len(LENGTHS)
    blas.matmul_segments(
        Ragged(device[0], LENGTHS), Ragged(device[1], inner), Ragged(together, LENGTHS)
    )
    for k, (start, length) in enumerate(zip(np.cumsum(LENGTHS) - LENGTHS, LENGTHS, strict=True)):
        rows = slice(start, start + length)
        blas.matmul_segments(
            Ragged(device[0][rows], [length]),
            Ragged(device[1][37 * k : 37 * (k + 1)], [37]),
            Ragged(alone[rows], [length]),
        )
    queue().flush()
    assert together.get().tobytes() == alone.get().tobytes()


def test_the_table_counts_tiles_and_elements():
    a, b, out = (
        Ragged(np.empty((sum(n), w)), n) for n, w in (((0, 40), 3), ((3, 3), 70), ((0, 40), 70))
    )
    entries, tiles = segment_entries(a, b, out, transpose_a=False)
    assert entries.tolist() == [[0, 0, 0, 0, 0, 3, 3, 70, 70], [0, 0, 210, 0, 40, 3, 3, 70, 70]]
    assert tiles == 2 * 3


def matrices(dtype, rows, widths, seed=0):
    """Matrices of different widths, flat."""
    values = normal(dtype, sum(np.multiply(rows, widths)), seed=seed)
    return Ragged(Values(values), rows, widths=widths)


INNER = (3, 0, 40, 1, 32, 2, 33, 5)
ACROSS = (4, 7, 33, 0, 1, 65, 32, 2)


@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
def test_segments_of_different_widths(cupy, dtype, transposes):
    """All three sizes of each product differ, some are 0."""
    left, right = [LENGTHS, INNER], [INNER, ACROSS]
    a = matrices(dtype, *(left[::-1] if transposes[0] else left))
    b = matrices(dtype, *(right[::-1] if transposes[1] else right), seed=1)
    out = matrices(dtype, LENGTHS, ACROSS)
    out.values.array[:] = np.nan
    with launches(1):
        *_, found = assert_versions_agree(blas.matmul_segments, a, b, out, *transposes, **TOLERANCE)
    assert np.isfinite(found).all()
