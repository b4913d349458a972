"""`kernels.binary` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import arrays
from dynbatch.kernels import binary as kernels
from dynbatch.kernels.c import elementwise
from dynbatch.kernels.c.printed import GRADIENTS_OF_TWO
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import c_version
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
    pairs = GRADIENTS_OF_TWO[side]
    assert len(pairs) > 3
    for kernel in pairs:
        for size in (0, 1, 75):
            dy, a, b, out = drawn(dtype, size)
            assert_same(kernels.combine_backward, kernel, dy, a, b, out, side)
        kernels.combine_backward(kernel, dy, a, b, out, side)
        kernels.combine_backward(kernel, dy, a, b, dy, side)
        assert dy.tobytes() == out.tobytes()


@DTYPES
@pytest.mark.usefixtures("same_threads")
def test_sums_copies_and_fills_are_shared_where_they_are_large(dtype, monkeypatch):
    monkeypatch.setattr(elementwise, "WORTH_A_THREAD", 16)
    parallel.set_num_threads(2)
    dy, a, b, out = drawn(dtype)
    for side in (0, 1):
        assert_same(kernels.combine_backward, kernels.add, dy, a, b, out, side)
    assert_same(kernels.combine, kernels.add, a, b, out)
    assert_same(arrays.fill, out, np.nan)
    for refused in (dy[:31], dy[::2]):
        assert c_version(arrays.fill)(refused, 1.0) is NotImplemented
    parallel.set_num_threads(1)
    assert c_version(arrays.fill)(dy, 1.0) is NotImplemented


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
