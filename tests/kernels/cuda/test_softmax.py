from itertools import pairwise

import numpy as np
import pytest

from dynbatch.kernels import softmax
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

# Short and long segments in both layouts: a warp does up to 1024 rows of one column, or 64 of many.
LENGTHS = (0, 1, 31, 32, 33, 0, 1024, 1025, 2, 65, 3000, 0)
OFFSETS = np.concatenate(([0], np.cumsum(LENGTHS)))
FORWARD = (softmax.softmax, softmax.log_softmax)
BACKWARD = (softmax.softmax_backward, softmax.log_softmax_backward)


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("width", [1, 2, 33])
@pytest.mark.parametrize("kernel", FORWARD)
def test_forward(cupy, dtype, kernel, width):
    x = Values(5 * normal(dtype, OFFSETS[-1], width))
    with launches(1):
        assert_versions_agree(kernel, x, OFFSETS, Values(x.array), rtol=2e-4, atol=5e-6)


@pytest.mark.parametrize("width", [1, 2, 33])
@pytest.mark.parametrize(("forward", "backward"), list(zip(FORWARD, BACKWARD, strict=True)))
def test_backward(cupy, dtype, forward, backward, width):
    dy, y = normal(dtype, OFFSETS[-1], width, seed=1), np.empty((OFFSETS[-1], width), dtype)
    forward(5 * normal(dtype, *y.shape), OFFSETS, y)
    device = [cupy.asarray(array) for array in (dy, y, y)]
    backward(*device[:2], OFFSETS, device[2])
    queue().flush()
    # Held against float64 of the same inputs: the reference's own sums of thousands of terms
    # round in another order.
    expected = np.empty(y.shape)
    backward(dy.astype(np.float64), y.astype(np.float64), OFFSETS, expected)
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(device[2].get(), expected, rtol=100 * tolerance, atol=20 * tolerance)


@pytest.mark.parametrize(("count", "length"), [(0, 5), (3, 0), (1, 1), (70, 33), (2, 1025)])
@pytest.mark.parametrize("kernel", FORWARD)
def test_segments_of_one_length_need_no_table(cupy, dtype, kernel, count, length):
    x, offsets = Values(normal(dtype, count * length, 1)), np.arange(count + 1) * length
    uploads = queue().uploads
    with launches(bool(count)):
        assert_versions_agree(kernel, x, offsets, Values(x.array), rtol=1e-4, atol=2e-6)
    assert queue().uploads == uploads


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kernel", FORWARD)
def test_infinities_and_nan(cupy, dtype, kernel, width):
    x = normal(dtype, OFFSETS[-1], width)
    x[OFFSETS[2] : OFFSETS[3]] = -np.inf  # a whole segment: NaN
    x[OFFSETS[3]] = -np.inf  # the first element only: probability 0
    x[OFFSETS[4] + 3] = np.inf  # NaN
    x[OFFSETS[6] + 700, 0] = np.nan
    x[OFFSETS[7] + 5 :: 7] = -np.inf
    x[OFFSETS[8], 0] = np.nan  # the first element that a thread sees
    x[OFFSETS[10] : OFFSETS[10] + 300] = -np.inf  # all that some threads of a long segment see
    assert_versions_agree(kernel, Values(x), OFFSETS, Values(x), rtol=1e-3, atol=2e-6)


def test_large_values_do_not_overflow(cupy, dtype):
    x = Values(np.array([[1e4], [1e4 + 1], [-1e4]], dtype))
    *_, y = assert_versions_agree(softmax.softmax, x, np.array([0, 3]), Values(x.array))
    np.testing.assert_allclose(y[:, 0], [1 / (1 + np.e), np.e / (1 + np.e), 0], rtol=1e-5)


@pytest.mark.parametrize("width", [1, 40])
def test_the_output_may_be_the_input(cupy, dtype, width):
    x = cupy.asarray(normal(dtype, OFFSETS[-1], width))
    apart = cupy.empty(x.shape, dtype)
    softmax.softmax(x, OFFSETS, apart)
    softmax.softmax(x, OFFSETS, x)
    queue().flush()
    assert x.get().tobytes() == apart.get().tobytes()


@pytest.mark.parametrize("width", [1, 40])
def test_bits_do_not_depend_on_the_other_segments(cupy, dtype, width):
    x = cupy.asarray(normal(dtype, OFFSETS[-1], width))
    together, alone = cupy.empty(x.shape, dtype), cupy.empty(x.shape, dtype)
    softmax.softmax(x, OFFSETS, together)
    for start, end in pairwise(OFFSETS):
        softmax.softmax(x[start:end], np.array([0, end - start]), alone[start:end])
    queue().flush()
    assert alone.get().tobytes() == together.get().tobytes()
