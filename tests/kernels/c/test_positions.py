"""`kernels.positions` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import positions as kernels
from dynbatch.kernels.c import positions as compiled
from dynbatch.kernels.positions import Angles
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import assert_same

OFFSETS, STARTS = np.array([0, 0, 1, 1, 40, 77, 77]), np.array([3, 9, 1, 0, 30, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize("is_inverse", [True, False])
@pytest.mark.parametrize("width", [2, 6, 16, 36, 64])
def test_rotary(dtype, is_interleaved, is_inverse, width, monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(parallel, "num_threads", lambda: 3)
    heads, features = 2, width + 5
    wide = np.random.default_rng(width).standard_normal((77, heads * features + 7)).astype(dtype)
    x, out = wide[:, 7:], np.full((77, heads * features), np.nan, dtype)
    turned = OFFSETS, STARTS, Angles(width, 100.0), heads, is_interleaved, is_inverse
    assert_same(kernels.rotary, x, *turned, out)
    assert_same(kernels.rotary, x.copy(), *turned, x.copy())
    kernels.rotary(x, *turned, out)
    kernels.rotary(x, *turned, x)  # in place
    assert x.tobytes() == out.tobytes()
