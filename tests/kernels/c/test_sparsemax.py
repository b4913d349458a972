"""`kernels.sparsemax` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import sparsemax as kernels
from tests.kernels.c.compare import assert_same

LENGTHS = [0, 1, 5, 16, 17, 0, 300]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 16, 37])
@pytest.mark.parametrize("scale", [0.01, 1, 9])
def test_segments_of_some_columns(width, dtype, scale):
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((2, int(offsets[-1]), width)) * scale).astype(dtype)
    x[20:30] = np.round(x[20:30])  # ties
    y = np.empty_like(x)
    assert_same(kernels.sparsemax, x, offsets, y)
    kernels.sparsemax(x, offsets, y)
    assert_same(kernels.sparsemax_backward, dy, y, offsets, np.empty_like(x))
    kernels.sparsemax(x, offsets, x)
    assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("width", [1, 3])
def test_infinite_and_missing_numbers_give_what_numpy_gives(width):
    segments = [
        [0, -np.inf, 3], [np.nan, 1], [1, np.nan], [-np.inf, -np.inf], [200, -200], [np.inf, 0],
        [1e8, 1e8, -np.inf], [np.inf, np.inf], [-np.inf],
    ]  # fmt: skip
    x = np.repeat(np.concatenate(segments)[:, None], width, axis=1).astype(np.float32)
    x[0, -1] = 2.5  # each column has its own threshold
    offsets = np.concatenate([[0], np.cumsum([len(segment) for segment in segments])])
    assert_same(kernels.sparsemax, x, offsets, np.empty_like(x))


@pytest.mark.parametrize("width", [1, 20])
def test_a_segment_has_the_same_bits_wherever_it_lies(width):
    rng = np.random.default_rng(2)
    alone, other = (rng.standard_normal((rows, width)).astype(np.float32) for rows in (37, 5))
    own, y = np.empty_like(alone), np.empty((79, width), np.float32)
    kernels.sparsemax(alone, np.array([0, 37]), own)
    kernels.sparsemax(np.concatenate([other, alone, alone]), np.array([0, 5, 42, 79]), y)
    assert y[5:42].tobytes() == own.tobytes() == y[42:].tobytes()
