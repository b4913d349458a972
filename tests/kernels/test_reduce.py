import itertools

import numpy as np
import pytest

from dynbatch.kernels import reduce as kernels

pytestmark = pytest.mark.usefixtures("block")

OFFSETS = np.array([0, 3, 3, 4, 13])


@pytest.mark.parametrize("width", [1, 4, 40])
def test_mean_and_logsumexp_equal_a_loop(width):
    x = np.random.default_rng(0).standard_normal((13, width))
    mean, logsumexp = np.full((2, 4, width), np.nan)
    kernels.mean_segments(x, OFFSETS, mean)
    kernels.logsumexp_segments(x, OFFSETS, logsumexp)
    assert not mean[1].any() and (logsumexp[1] == -np.inf).all()
    for k in (0, 2, 3):
        part = x[OFFSETS[k] : OFFSETS[k + 1]]
        np.testing.assert_allclose(mean[k], part.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(logsumexp[k], np.log(np.exp(part).sum(axis=0)))


def test_their_gradients_are_shares_that_sum_to_the_outputs():
    x, out = np.random.default_rng(0).standard_normal((2, 13, 4))
    dy = np.random.default_rng(1).standard_normal((4, 4))
    y = np.empty((4, 4))
    kernels.mean_segments_backward(dy, OFFSETS, out)
    np.testing.assert_allclose(out[4:], np.repeat(dy[3:] / 9, 9, axis=0))
    kernels.logsumexp_segments(x, OFFSETS, y)
    kernels.logsumexp_segments_backward(dy, x, y, OFFSETS, out)
    np.testing.assert_allclose(out[4:].sum(axis=0), dy[3])
    np.testing.assert_allclose(out[3], dy[2])


@pytest.mark.parametrize("offsets", [[0, 3, 4, 13], [0, 4, 8, 12]])
@pytest.mark.parametrize("width", [1, 4, 40])
@pytest.mark.parametrize("largest", [True, False])
def test_extrema_are_found_first_and_send_their_gradient_there(offsets, width, largest):
    offsets = np.array(offsets)
    x = np.random.default_rng(0).integers(0, 3, (offsets[-1], width)).astype(float)
    dy = np.random.default_rng(1).standard_normal((3, width))
    parts = [x[a:b] for a, b in itertools.pairwise(offsets)]
    values = np.array([part.max(axis=0) if largest else part.min(axis=0) for part in parts])
    expected = [part.argmax(axis=0) if largest else part.argmin(axis=0) for part in parts]
    first = np.empty((3, width), np.int32)
    kernels.first_extremum(largest, x, values, offsets, first)
    assert first.tolist() == np.array(expected).tolist()
    out = np.full_like(x, np.nan)
    kernels.extremum_backward(dy, first, offsets, out)
    assert (out != 0).sum() == dy.size
    for k in range(3):
        assert (out[offsets[k] + first[k], np.arange(width)] == dy[k]).all()
