import itertools

import numpy as np
import pytest

from dynbatch.kernels import windows as kernels

pytestmark = pytest.mark.usefixtures("block")

OFFSETS = np.array([0, 4, 4, 5, 12])


def windows_of(size, stride, padding=0):
    """The windows of the segments above."""
    counts = [kernels.count_windows(int(n), size, stride, padding) for n in np.diff(OFFSETS)]
    ends = np.concatenate(([0], np.cumsum(counts)))
    return kernels.WindowTable(OFFSETS, ends, size, stride, padding)


@pytest.mark.parametrize(
    ("rows", "how", "count"),
    [
        (5, (3, 1, 0), 3), (5, (3, 2, 0), 2), (2, (3, 1, 0), 0), (0, (3, 1, 0), 0),
        (0, (3, 1, 2), 2), (1, (3, 1, 2), 3), (6, (3, 3, 0), 2), (5, (1, 1, 0), 5),
    ],
)  # fmt: skip
def test_windows_are_counted(rows, how, count):
    assert kernels.count_windows(rows, *how) == count


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, 0), (3, 1, 2), (2, 3, 1), (4, 2, 3)]
)
def test_unfolding_equals_a_loop_over_padded_segments(size, stride, padding):
    x = np.random.default_rng(0).standard_normal((12, 2))
    windows = windows_of(size, stride, padding)
    expected = []
    for a, b in itertools.pairwise(OFFSETS):
        rows = np.pad(x[a:b], ((padding, padding), (0, 0)))
        for start in range(0, len(rows) - size + 1, stride):
            expected.append(rows[start : start + size].reshape(-1))
    out = np.full((windows.ends[-1], size * 2), np.nan)
    kernels.unfold(x, windows, out)
    assert out.tolist() == np.array(expected).tolist()
    dy = np.random.default_rng(1).standard_normal(out.shape)
    dx = np.full_like(x, np.nan)
    kernels.unfold_backward(dy, windows, dx)
    assert (dy * out).sum() == pytest.approx((dx * x).sum())  # the transposed linear map


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (2, 2), (3, 2), (2, 3)])
def test_pools_equal_a_loop_over_windows(size, stride):
    x = np.random.default_rng(0).integers(0, 4, (12, 3)).astype(float)
    windows = windows_of(size, stride)
    starts = windows.starts()
    largest, mean = np.full((2, starts.size, 3), np.nan)
    place = np.empty((starts.size, 3), np.int64)
    kernels.max_pool(x, windows, largest, place)
    kernels.mean_pool(x, windows, mean)
    for m, start in enumerate(starts):
        window = x[start : start + size]
        assert largest[m].tolist() == window.max(axis=0).tolist()
        assert place[m].tolist() == window.argmax(axis=0).tolist()
        np.testing.assert_allclose(mean[m], window.mean(axis=0))
    again = np.empty_like(largest)
    kernels.max_pool(x, windows, again, None)
    assert (again == largest).all()


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (2, 2), (3, 2), (2, 3)])
def test_gradients_of_pools_add_up_where_windows_overlap(size, stride):
    windows = windows_of(size, stride)
    starts = windows.starts()
    dy = np.random.default_rng(1).standard_normal((starts.size, 3))
    place = np.random.default_rng(2).integers(0, size, (starts.size, 3))
    out = np.full((12, 3), np.nan)
    expected = np.zeros_like(out)
    for m, start in enumerate(starts):
        expected[start + place[m], np.arange(3)] += dy[m]
    kernels.max_pool_backward(dy, windows, place, out)
    np.testing.assert_allclose(out, expected, atol=1e-12)
    expected[...] = 0
    for m, start in enumerate(starts):
        expected[start : start + size] += dy[m] / size
    kernels.mean_pool_backward(dy, windows, out)
    np.testing.assert_allclose(out, expected, atol=1e-12)
