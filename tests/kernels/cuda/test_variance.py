import numpy as np
import pytest

from dynbatch.kernels import variance
from dynbatch.kernels.matrices import Matrices
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import SEGMENT, normal


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
def test_squared_deviations(cupy, dtype, offsets, width):
    x, mean = normal(dtype, offsets[-1], width), normal(dtype, len(offsets) - 1, width, seed=1)
    with launches(bool(offsets[-1])):
        assert_versions_agree(
            variance.squared_deviations, x, mean, offsets, normal(dtype, offsets[-1], width)
        )


@SEGMENT
@pytest.mark.parametrize("width", [1, 33])
@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_their_gradients(cupy, dtype, offsets, width, root, correction):
    segments = len(offsets) - 1
    dy, mean, y = (normal(dtype, segments, width, seed=seed) for seed in (1, 2, 3))
    at_zero = y.array.copy()
    at_zero[::3] = 0
    x, out = normal(dtype, offsets[-1], width), normal(dtype, offsets[-1], width)
    with launches(bool(offsets[-1])):
        assert_versions_agree(
            variance.spread_backward, dy, x, mean, Values(at_zero), offsets, correction, root, out,
            rtol=1e-4,
        )  # fmt: skip


@pytest.mark.parametrize("root", [False, True])
def test_matrices_take_one_launch(cupy, dtype, root):
    matrices = Matrices([3, 0, 5, 2, 70, 2], [4, 2, 0, 65, 33, 1])
    elements, sums = int(matrices.rows @ matrices.widths), int(matrices.widths.sum())
    dy, mean, y = (normal(dtype, sums, 1, seed=seed) for seed in (1, 2, 3))
    x, out = normal(dtype, elements, 1), normal(dtype, elements, 1)
    with launches(1):
        assert_versions_agree(variance.squared_deviations, x, mean, matrices, out)
    with launches(1):
        assert_versions_agree(
            variance.spread_backward, dy, x, mean, y, matrices, 1.0, root, out, rtol=1e-4
        )


def test_of_one_row_it_is_nan(cupy, dtype):
    ones = Values(np.ones((1, 2), dtype))
    *_, out = assert_versions_agree(
        variance.spread_backward, ones, ones, ones, ones, np.array([0, 1]), 1.0, False,
        normal(dtype, 1, 2),
    )  # fmt: skip
    assert np.isnan(out).all()
