"""`kernels.arrays` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.c import arrays as in_c
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import assert_same


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 16, 37, 8200])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_sum_of_rows(rows: int, width: int, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((rows, width + 3)).astype(dtype)[:, 2 : width + 2]
    assert_same(kernels.sum_rows, x, np.empty(width, dtype))


@pytest.mark.usefixtures("same_threads")
def test_the_bits_of_a_sum_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_c, "WORTH_A_THREAD", 8)
    x = np.random.default_rng(0).standard_normal((100, 37)).astype(np.float32)
    sums = np.empty((3, 37), np.float32)
    for threads, out in enumerate(sums, 1):
        parallel.set_num_threads(threads)
        kernels.sum_rows(x, out)
    assert sums[0].tobytes() == sums[1].tobytes() == sums[2].tobytes()
