import numpy as np
import pytest

from dynbatch.kernels import cumulative, reduce, softmax, variance
from dynbatch.kernels.matrices import Matrices
from dynbatch.kernels.segment import reduce_segments, spread_segments

SHAPES = ((3, 4), (2, 4), (0, 2), (5, 0), (1, 33), (300, 40), (4, 1))
MATRICES = Matrices(*np.array(SHAPES).T)


def parts(flat, sizes):
    return np.split(flat.reshape(-1), np.cumsum(sizes)[:-1])


def matrices_of(flat):
    sizes = [rows * width for rows, width in SHAPES]
    return [part.reshape(shape) for part, shape in zip(parts(flat, sizes), SHAPES, strict=True)]


def rows_of(flat):
    return parts(flat, [width for _, width in SHAPES])


def some(seed=0):
    return np.random.default_rng(seed).standard_normal((int(MATRICES.rows @ MATRICES.widths), 1))


def nothing():
    return np.full((int(MATRICES.widths.sum()), 1), np.nan)


@pytest.mark.parametrize("kernel", [softmax.softmax, softmax.log_softmax, reduce.mean_segments])
def test_bits_are_those_of_each_matrix_alone(kernel):
    x = some()
    out = nothing() if kernel is reduce.mean_segments else np.empty_like(x)
    kernel(x, MATRICES, out)
    split = rows_of if kernel is reduce.mean_segments else matrices_of
    for own, found in zip(matrices_of(x), split(out), strict=True):
        alone = np.empty_like(found).reshape(-1, max(1, own.shape[1]))
        if own.shape[1]:
            kernel(own, np.array([0, len(own)]), alone)
        assert alone.tobytes() == found.tobytes()


def test_a_matrix_without_rows_is_reduced_to_what_is_said():
    out = nothing()
    reduce_segments(np.add, some(), MATRICES, out, 7.0)
    assert rows_of(out)[2].tolist() == [7, 7] and np.isfinite(out).all()


@pytest.mark.parametrize("backwards", [False, True])
def test_running_sums_stay_within_their_matrix(backwards):
    x = some()
    out = np.empty_like(x)
    cumulative.cumsum_segments(x, MATRICES, backwards, out)
    turn = slice(None, None, -1 if backwards else 1)
    for own, found in zip(matrices_of(x), matrices_of(out), strict=True):
        assert np.array_equal(found, own[turn].cumsum(0)[turn])


@pytest.mark.parametrize("root", [False, True])
def test_deviations_and_their_gradients_are_from_the_means_of_their_matrix(root):
    x, out, gradient = some(), some(), some()
    mean, dy, y = np.random.default_rng(1).standard_normal((3, int(MATRICES.widths.sum()), 1))
    variance.squared_deviations(x, mean, MATRICES, out)
    variance.spread_backward(dy, x, mean, y, MATRICES, 0.5, root, gradient)
    rows = zip(*[rows_of(values) for values in (mean, dy, y)], strict=True)
    found = zip(*[matrices_of(values) for values in (x, out, gradient)], strict=True)
    for (means, dys, ys), (own, squares, slopes) in zip(rows, found, strict=True):
        np.testing.assert_allclose(squares, (own - means) ** 2)
        each = dys / ys if root else 2 * dys
        np.testing.assert_allclose(slopes, each * (own - means) / max(len(own) - 0.5, 0.5))


def test_a_row_is_spread_over_its_matrix():
    values, out = np.arange(84.0)[:, None], some()
    spread_segments(values, MATRICES, out)
    for row, matrix in zip(rows_of(values), matrices_of(out), strict=True):
        assert (matrix == row).all()
