"""`kernels.softmax` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import softmax as kernels
from tests.kernels.c.compare import assert_same

LENGTHS = [0, 1, 5, 16, 17, 0, 300]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_of_segments(dtype: type) -> None:
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((2, int(offsets[-1]), 1)) * 9).astype(dtype)
    y = np.empty_like(x)
    assert_same(kernels.softmax, x, offsets, y)
    kernels.softmax(x, offsets, y)
    assert_same(kernels.softmax_backward, dy, y, offsets, np.empty_like(x))


def test_infinite_and_missing_logits_give_what_numpy_gives() -> None:
    x = np.array([0, -np.inf, 3, np.nan, 1, -np.inf, -np.inf, 200, -200], np.float32)[:, None]
    offsets = np.array([0, 3, 5, 7, 9])
    assert_same(kernels.softmax, x, offsets, np.empty_like(x))


def test_a_segment_has_the_same_bits_wherever_it_lies() -> None:
    rng = np.random.default_rng(2)
    alone = rng.standard_normal((37, 1)).astype(np.float32)
    x = np.concatenate([rng.standard_normal((5, 1)).astype(np.float32), alone, alone])
    y, own = np.empty_like(x), np.empty_like(alone)
    kernels.softmax(alone, np.array([0, 37]), own)
    kernels.softmax(x, np.array([0, 5, 42, 79]), y)
    assert y[5:42].tobytes() == own.tobytes() == y[42:].tobytes()
