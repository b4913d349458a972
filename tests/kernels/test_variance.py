import itertools

import numpy as np
import pytest

from dynbatch.kernels.variance import spread_backward, squared_deviations

OFFSETS = np.array([0, 3, 3, 4, 13])


@pytest.mark.parametrize("width", [1, 4, 40])
def test_deviations_equal_a_loop(width):
    generator = np.random.default_rng(0)
    x, mean = generator.standard_normal((13, width)), generator.standard_normal((4, width))
    out = np.full_like(x, np.nan)
    squared_deviations(x, mean, OFFSETS, out)
    for k, (start, end) in enumerate(itertools.pairwise(OFFSETS)):
        np.testing.assert_allclose(out[start:end], (x[start:end] - mean[k]) ** 2)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_gradients_equal_the_formula_of_the_docstring(root, correction):
    generator = np.random.default_rng(0)
    x, mean, (dy, y) = (
        generator.standard_normal((13, 3)),
        generator.standard_normal((4, 3)),
        generator.standard_normal((2, 4, 3)),
    )
    y[0, 0] = 0
    out = np.full_like(x, np.nan)
    spread_backward(dy, x, mean, y, OFFSETS, correction, root, out)
    for k, (start, end) in enumerate(itertools.pairwise(OFFSETS)):
        m = max(end - start - correction, 0)
        with np.errstate(all="ignore"):
            slope = 1 / np.float64(m) / y[k] if root else 2 / np.float64(m)
            slope = np.where(root & (y[k] == 0), 0, slope)
            expected = dy[k] * slope * (x[start:end] - mean[k])
        np.testing.assert_allclose(out[start:end], expected)
