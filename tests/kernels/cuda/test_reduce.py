import numpy as np
import pytest

from dynbatch.kernels import reduce
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import LONG, SEGMENT, SEGMENTS, normal

WIDTHS = pytest.mark.parametrize("width", [1, 3, 33])
OCCUPIED = {
    "uneven": np.cumsum((0, 1, 16, 17, 31, 32, 33, 64, 65, 256, 1025)),
    "of one length": np.arange(40) * 5,
    "longer than a warp": np.arange(4) * 65,
}
OCCUPIED_SEGMENT = pytest.mark.parametrize("offsets", OCCUPIED.values(), ids=OCCUPIED.keys())


@SEGMENT
@WIDTHS
@pytest.mark.parametrize("kernel", [reduce.mean_segments, reduce.logsumexp_segments])
def test_segments_are_reduced(cupy, dtype, kernel, offsets, width):
    x, out = normal(dtype, offsets[-1], width), normal(dtype, len(offsets) - 1, width)
    shared = width > 1 and offsets[-1] > 1000  # a segment of more than one block
    with launches((1 + shared) * (len(offsets) > 1)):
        assert_versions_agree(kernel, x, offsets, out, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("kernel", [reduce.mean_segments, reduce.logsumexp_segments])
@pytest.mark.parametrize("offsets", [LONG, np.array([0, 16385, 2 * 16385])])
def test_a_long_segment_is_shared_by_blocks(cupy, dtype, kernel, offsets):
    x, out = normal(dtype, offsets[-1], 1), normal(dtype, len(offsets) - 1, 1)
    with launches(2):
        assert_versions_agree(kernel, x, offsets, out, rtol=1e-5, atol=5e-6)


@SEGMENT
@WIDTHS
def test_a_mean_is_spread(cupy, dtype, offsets, width):
    dy, dx = normal(dtype, len(offsets) - 1, width), normal(dtype, offsets[-1], width)
    with launches(bool(offsets[-1])):
        assert_versions_agree(reduce.mean_segments_backward, dy, offsets, dx)


def extremes(dtype, offsets, width):
    """Values with infinities and NaN in every second segment: at its start, its end, everywhere."""
    x = 3 * normal(dtype, offsets[-1], width).array
    starts, ends = offsets[:-1], offsets[1:] - 1
    x[ends[1::2], 0] = np.inf
    x[starts[1::2], -1] = -np.inf
    x[starts[3]] = np.nan
    x[starts[4]] = np.inf
    x[starts[5] : ends[5] + 1] = -np.inf
    return x


@WIDTHS
def test_logsumexp_of_infinities_and_nan(cupy, dtype, width):
    offsets = OCCUPIED["uneven"]
    x, out = extremes(dtype, offsets, width), normal(dtype, len(offsets) - 1, width)
    *_, y = assert_versions_agree(reduce.logsumexp_segments, Values(x), offsets, out)
    assert {-np.inf, np.inf} <= set(y[:, 0].tolist()) and np.isnan(y).any()
    dy, dx = normal(dtype, *y.shape, seed=1), normal(dtype, *x.shape)
    assert_versions_agree(
        reduce.logsumexp_segments_backward, dy, Values(x), Values(y), offsets, dx, rtol=1e-4
    )


@OCCUPIED_SEGMENT
@WIDTHS
def test_logsumexp_backward(cupy, dtype, offsets, width):
    x, y = normal(dtype, offsets[-1], width), np.empty((len(offsets) - 1, width), dtype)
    reduce.logsumexp_segments(x.array, offsets, y)
    dy, dx = normal(dtype, *y.shape, seed=1), normal(dtype, *x.array.shape)
    with launches(1):
        assert_versions_agree(
            reduce.logsumexp_segments_backward, dy, x, Values(y), offsets, dx, atol=2e-6
        )


@OCCUPIED_SEGMENT
@WIDTHS
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_extremum(cupy, dtype, largest, offsets, width):
    x = np.round(normal(dtype, offsets[-1], width).array)  # ties
    if offsets is OCCUPIED["uneven"]:
        x = np.round(extremes(dtype, offsets, width))
    reduction = np.maximum if largest else np.minimum
    values = reduction.reduceat(x, offsets[:-1], axis=0)
    place = Values(np.zeros(values.shape, f"i{dtype.itemsize}"))
    with launches(1):
        *_, first = assert_versions_agree(
            reduce.first_extremum, largest, Values(x), Values(values), offsets, place
        )
    dy, dx = normal(dtype, *values.shape), normal(dtype, *x.shape)
    assert_versions_agree(reduce.extremum_backward, dy, Values(first), offsets, dx, rtol=0, atol=0)


def test_no_segments(cupy, dtype):
    nothing, offsets = Values(np.zeros((0, 3), dtype)), SEGMENTS["none"]
    place = Values(np.zeros((0, 3), f"i{dtype.itemsize}"))
    with launches(0):
        assert_versions_agree(reduce.first_extremum, True, nothing, nothing, offsets, place)
        assert_versions_agree(reduce.extremum_backward, nothing, place, offsets, nothing)
