import itertools

import numpy as np
import pytest

from dynbatch.kernels import kmax_pool

OFFSETS = np.array([0, 3, 12, 15, 17])


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("k", [1, 2])
def test_equal_a_loop_over_segments_and_columns(k, width):
    x = np.random.default_rng(0).integers(-2, 3, (17, width)).astype(float)  # with ties
    x[5], x[6, 0] = -np.inf, np.nan
    y = np.empty((4 * k, width))
    place, dy = np.empty(y.shape, np.int64), np.random.default_rng(1).standard_normal(y.shape)
    expected, dx, given = np.empty_like(y), np.full((2, 17, width), np.nan), x.copy()
    kmax_pool.kmax_pool(x, OFFSETS, k, y, place)
    kmax_pool.kmax_pool_backward(dy, OFFSETS, k, place, dx[0])
    dx[1] = 0
    for s, (start, end) in enumerate(itertools.pairwise(OFFSETS)):
        for d in range(width):
            numbers = np.where(np.isnan(x), np.inf, x)[start:end, d].tolist()
            falling = sorted(range(end - start), key=lambda n, of=numbers: (-of[n], n))
            rows = [start + n for n in sorted(falling[:k])]
            expected[s * k : s * k + k, d] = x[rows, d]
            dx[1][rows, d] = dy[s * k : s * k + k, d]
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(dx[0], dx[1])
    np.testing.assert_array_equal(x, given)
