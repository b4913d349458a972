"""`kernels.choosing.draws` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels.choosing import draws as kernels
from tests.kernels.c.compare import assert_same

CUTS = [
    [1, 0, 1, 0], [0.7, 0, 1, 0], [1, 5, 1, 0], [1, 0, 0.6, 0], [1, 0, 0.05, 0], [1, 0, 1, 0.2],
    [1.5, 30, 0.9, 0.02], [1, 1, 1, 0], [2, 7, 0.99, 0.5],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [1, 2, 15, 16, 17, 100, 1000])
def test_rows_are_cut_and_drawn_from(classes: int, dtype: type) -> None:
    rng = np.random.default_rng(classes)
    x = (rng.standard_normal((len(CUTS), classes)) * 3).astype(dtype)
    x[:, ::5] = np.round(x[:, ::5])
    x[0, classes // 2 :: 7] = x[0].max()
    cuts = np.array(CUTS, np.float64)
    assert_same(kernels.cut_rows, x, cuts)
    kernels.cut_rows(x, cuts)
    for uniforms in [rng.random(len(x)), np.full(len(x), -1.0), np.where(x[:, 0] > 0, -1, 0.5)]:
        assert_same(kernels.draw_rows, x, uniforms, np.empty(len(x), np.int64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_ends_of_the_interval_are_drawn_within_what_stays(dtype: type) -> None:
    x = np.full((3, 50), -np.inf, dtype)
    x[:, [7, 20, 33]] = [0.1, 5, 1]
    uniforms = np.array([0, 0.5, np.nextafter(1, 0)])
    out = np.empty(3, np.int64)
    kernels.draw_rows(x, uniforms, out)
    assert out.tolist() == [7, 20, 33]
    assert_same(kernels.draw_rows, x, uniforms, out)


def test_nan_counts_as_the_largest() -> None:
    x = np.zeros((2, 40), np.float32)
    x[0, [20, 30]] = np.nan
    x[1, 17] = -1
    assert_same(kernels.draw_rows, x, np.array([-1.0, -1.0]), np.empty(2, np.int64))
