import numpy as np
import pytest

from dynbatch.kernels import sparsemax

OFFSETS = np.array([0, 3, 3, 4, 13])


def by_sorting(x):
    largest = -np.sort(-x)
    means = (np.cumsum(largest) - 1) / np.arange(1, x.size + 1)
    return np.maximum(x - means[largest > means][-1], 0)


@pytest.mark.parametrize("width", [1, 4, 40])
def test_equal_sorting_each_segment_and_column(width):
    x, dy = np.random.default_rng(0).standard_normal((2, 13, width))
    y, dx = np.full((2, 13, width), np.nan)
    sparsemax.sparsemax(x, OFFSETS, y)
    sparsemax.sparsemax_backward(dy, y, OFFSETS, dx)
    for start, end in ((0, 3), (3, 4), (4, 13)):
        for d in range(width):
            span = slice(start, end), d
            np.testing.assert_allclose(y[span], by_sorting(x[span]), atol=1e-15)
            kept = y[span] > 0
            expected = np.where(kept, dy[span] - dy[span][kept].mean(), 0)
            np.testing.assert_allclose(dx[span], expected, atol=1e-15)
    assert (y == 0).any()
    sparsemax.sparsemax(x, OFFSETS, x)  # in place
    assert np.array_equal(x, y)


def test_ties_far_numbers_and_infinities():
    x = np.array([[1e8], [1e8], [-np.inf], [-np.inf], [0.0], [np.nan]], np.float32)
    y = np.empty_like(x)
    sparsemax.sparsemax(x, np.array([0, 3, 4, 6, 6]), y)
    np.testing.assert_array_equal(y[:, 0], [0.5, 0.5, 0, *[np.nan] * 3])
