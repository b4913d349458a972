"""`kernels.softmax` in C against NumPy."""

from collections.abc import Callable

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels import softmax as kernels
from tests.kernels.c.compare import assert_same

LENGTHS = [0, 1, 5, 16, 17, 0, 300]
FORWARD = [kernels.softmax, kernels.log_softmax]
PAIRS = [*zip(FORWARD, [kernels.softmax_backward, kernels.log_softmax_backward], strict=True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 16, 37])
@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_segments_of_some_columns(
    forward: Callable[..., None], backward: Callable[..., None], width: int, dtype: type
) -> None:
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((2, int(offsets[-1]), width)) * 9).astype(dtype)
    y = np.empty_like(x)
    assert_same(forward, x, offsets, y)
    forward(x, offsets, y)
    assert_same(backward, dy, y, offsets, np.empty_like(x))
    forward(x, offsets, x)
    assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize("width", [1, 3])
def test_infinite_and_missing_logits_give_what_numpy_gives(
    forward: Callable[..., None], width: int
) -> None:
    x = np.array([0, -np.inf, 3, np.nan, 1, -np.inf, -np.inf, 200, -200], np.float32)
    x = np.repeat(x[:, None], width, axis=1)
    offsets = np.array([0, 3, 5, 7, 9])
    assert_same(forward, x, offsets, np.empty_like(x))


@pytest.mark.parametrize("forward", FORWARD)
@pytest.mark.parametrize("width", [1, 20])
def test_a_segment_has_the_same_bits_wherever_it_lies(
    forward: Callable[..., None], width: int
) -> None:
    rng = np.random.default_rng(2)
    alone, other = (rng.standard_normal((rows, width)).astype(np.float32) for rows in (37, 5))
    x = np.concatenate([other, alone, alone])
    own, y = result(forward, alone, [0, 37]), result(forward, x, [0, 5, 42, 79])
    assert y[5:42].tobytes() == own.tobytes() == y[42:].tobytes()


def result(forward: Callable[..., None], x: Array, offsets: list[int]) -> Array:
    y = np.empty_like(x)
    forward(x, np.array(offsets), y)
    return y
