"""`kernels.clipping` in C against NumPy."""

import math

import numpy as np
import pytest

from dynbatch.kernels import clipping as kernels
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import c_version


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [8193, 8256, 16384, 100_001])
def test_the_sum_is_the_exact_one(dtype, count):
    """NumPy's version sums what is shorter."""
    values = np.random.default_rng(0).standard_normal(count).astype(dtype)
    expected = math.fsum(x * x for x in values.astype(np.float64).tolist())
    tolerance = 1e-12 if dtype == np.float64 else 1e-6
    assert c_version(kernels.sum_squares)(values) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("number", [np.nan, np.inf, 3e19, 1e-30])
def test_numbers_beyond_a_floats_squares_give_what_numpy_gives(number):
    values = np.ones((100, 101), np.float32)  # 10,100 elements
    values[70, 3] = number
    with library.reference_only():
        expected = kernels.sum_squares(values)
    assert kernels.sum_squares(values) == pytest.approx(expected, nan_ok=True)


def test_the_sum_does_not_depend_on_the_number_of_threads(monkeypatch):
    values = np.random.default_rng(0).standard_normal(3 << 19).astype(np.float32)
    found = set()
    for threads in (1, 2, 3):
        monkeypatch.setattr(parallel, "available", lambda threads=threads: threads)
        found.add(kernels.sum_squares(values))
    assert len(found) == 1
