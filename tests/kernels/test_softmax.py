import numpy as np
import pytest

from dynbatch.kernels import softmax

pytestmark = pytest.mark.usefixtures("block")

OFFSETS = np.array([0, 3, 3, 4, 13])


@pytest.mark.parametrize("width", [1, 4, 40])
def test_equal_a_loop_over_segments_and_columns(width):
    x = 5 * np.random.default_rng(0).standard_normal((13, width))
    dy = np.random.default_rng(1).standard_normal((13, width))
    y, log_y, dx, log_dx = np.full((4, 13, width), np.nan)
    softmax.softmax(x, OFFSETS, y)
    softmax.log_softmax(x, OFFSETS, log_y)
    softmax.softmax_backward(dy, y, OFFSETS, dx)
    softmax.log_softmax_backward(dy, log_y, OFFSETS, log_dx)
    for start, end in ((0, 3), (3, 4), (4, 13)):
        for d in range(width):
            span = slice(start, end), d
            p = np.exp(x[span]) / np.exp(x[span]).sum()
            np.testing.assert_allclose(y[span], p)
            np.testing.assert_allclose(log_y[span], np.log(p))
            jacobian = np.diag(p) - np.outer(p, p)
            np.testing.assert_allclose(dx[span], jacobian @ dy[span], atol=1e-12)
            expected = dy[span] - p * dy[span].sum()
            np.testing.assert_allclose(log_dx[span], expected, atol=1e-12)


def test_no_segments_and_empty_segments_are_nothing_to_do():
    empty = np.empty((0, 3))
    for offsets in (np.array([0]), np.array([0, 0, 0])):
        softmax.softmax(empty, offsets, empty.copy())
        softmax.log_softmax(empty, offsets, empty.copy())
        softmax.softmax_backward(empty, empty, offsets, empty.copy())
        softmax.log_softmax_backward(empty, empty, offsets, empty.copy())
