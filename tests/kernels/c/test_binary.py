"""`kernels.binary` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import binary as kernels
from dynbatch.kernels.c.binary import BACKWARD
from tests.kernels.c.compare import assert_same

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def drawn(dtype, size=75):
    """Whole numbers of which many are equal, and others that are not numbers or infinite."""
    rng = np.random.default_rng(1)
    dy, a, b, out = rng.integers(-2, 3, (4, size)).astype(dtype)
    a[::17], b[5::17], b[7::19] = np.nan, np.nan, np.inf
    return [array.copy() for array in (dy, a, b, out)]


@DTYPES
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients(side, dtype):
    assert BACKWARD[side]
    for name in BACKWARD[side]:
        kernel = kernels.FUNCTIONS[name]
        for size in (0, 1, 75):
            dy, a, b, out = drawn(dtype, size)
            assert_same(kernels.combine_backward, kernel, dy, a, b, out, side)
        kernels.combine_backward(kernel, dy, a, b, out, side)
        kernels.combine_backward(kernel, dy, a, b, dy, side)
        assert dy.tobytes() == out.tobytes()


@DTYPES
def test_a_choice_and_its_gradients(dtype):
    mask, a, b, out = drawn(dtype)
    mask[::9] = np.nan
    assert_same(kernels.where, mask, a, b, out)
    for side in (0, 1):
        assert_same(kernels.where_backward, a, mask, out, side)
    kernels.where(mask, a, b, out)
    kernels.where(mask, a, b, b)
    assert b.tobytes() == out.tobytes()
