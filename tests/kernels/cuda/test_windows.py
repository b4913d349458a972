import numpy as np
import pytest

from dynbatch.kernels import windows as kernels
from dynbatch.kernels.windows import WindowTable
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

LENGTHS = {
    "uneven": (0, 1, 2, 31, 0, 32, 33, 3, 300, 0),
    "of one length": (5,) * 40,
    "shorter than a window": (1, 1, 1),
    "none": (),
}
SEGMENT = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
POOLS = pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2), (2, 3)])


def windows_of(lengths, size, stride, padding=0):
    counts = [kernels.count_windows(n, size, stride, padding) for n in lengths]
    offsets, ends = [np.concatenate(([0], np.cumsum(n))).astype(int) for n in (lengths, counts)]
    return WindowTable(offsets, ends, size, stride, padding), int(offsets[-1]), int(ends[-1])


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("how", [(3, 1, 0), (3, 1, 2), (2, 3, 1), (4, 2, 3), (1, 1, 0)])
def test_unfolding(cupy, dtype, lengths, width, how):
    windows, rows, count = windows_of(lengths, *how)
    x, out = normal(dtype, rows, width), normal(dtype, count, how[0] * width)
    with launches(bool(count) + bool(rows)):
        assert_versions_agree(kernels.unfold, x, windows, out, rtol=0, atol=0)
        assert_versions_agree(kernels.unfold_backward, out, windows, x)


@SEGMENT
@POOLS
@pytest.mark.parametrize("width", [1, 3, 33])
def test_maxima_of_windows(cupy, dtype, lengths, width, size, stride):
    windows, rows, count = windows_of(lengths, size, stride)
    x, out = normal(dtype, rows, width), normal(dtype, count, width)
    x.array[...] = np.round(x.array)  # ties
    x.array[7::31] = np.nan
    place = Values(np.full((count, width), -1, f"i{dtype.itemsize}"))
    with launches(2 * bool(count) + bool(rows)):
        assert_versions_agree(kernels.max_pool, x, windows, out, None, rtol=0, atol=0)
        *_, place = assert_versions_agree(kernels.max_pool, x, windows, out, place, rtol=0, atol=0)
        assert_versions_agree(kernels.max_pool_backward, out, windows, Values(place), x)


@SEGMENT
@POOLS
@pytest.mark.parametrize("width", [1, 3, 33])
def test_means_of_windows(cupy, dtype, lengths, width, size, stride):
    windows, rows, count = windows_of(lengths, size, stride)
    x, out = normal(dtype, rows, width), normal(dtype, count, width)
    with launches(bool(count) + bool(rows)):
        assert_versions_agree(kernels.mean_pool, x, windows, out)
        assert_versions_agree(kernels.mean_pool_backward, out, windows, x)
