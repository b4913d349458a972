from itertools import pairwise

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import segment
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.walks import segment_table
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches


def normal(dtype, *shape, seed=0):
    return Values(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


# Segments of a thread, a warp, a block and several blocks, with their borders, in both layouts.
SEGMENTS = {
    "uneven": np.cumsum((0, 0, 1, 16, 17, 0, 31, 32, 33, 64, 65, 256, 257, 600, 0)),
    "many of one length": np.arange(301) * 3,
    "longer than a warp": np.arange(4) * 65,
    "none": np.zeros(1, np.int64),
    "empty ones": np.zeros(4, np.int64),
}
SEGMENT = pytest.mark.parametrize("offsets", SEGMENTS.values(), ids=SEGMENTS.keys())
LONG = np.cumsum((0, 3, 16385, 40000))  # elements of more than one block


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.minimum])
def test_segments_are_reduced(cupy, dtype, ufunc, offsets, width):
    rows, out = normal(dtype, offsets[-1], width), normal(dtype, len(offsets) - 1, width)
    expected = (1 + (width > 1 and offsets[-1] > 1000)) * (len(offsets) > 1)
    with launches(expected):
        assert_versions_agree(
            segment.reduce_segments, ufunc, rows, offsets, out, 7, rtol=1e-4, atol=2e-5
        )


def test_a_long_segment_is_shared_by_blocks(cupy, dtype):
    rows, out = normal(dtype, LONG[-1], 1), normal(dtype, 3, 1)
    with launches(2):
        assert_versions_agree(segment.reduce_segments, np.add, rows, LONG, out, 0, atol=1e-3)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
def test_a_nan_is_the_extremum_of_its_segment(cupy, dtype, ufunc, width):
    offsets = SEGMENTS["uneven"]
    rows = normal(dtype, offsets[-1], width)
    rows.array[offsets[2:-2:2], 0] = np.nan
    rows.array[offsets[3:-2:2] + 1, -1] = np.inf
    rows.array[offsets[-3] : offsets[-2]] = -np.inf
    out = normal(dtype, len(offsets) - 1, width)
    assert_versions_agree(segment.reduce_segments, ufunc, rows, offsets, out, 0, rtol=0, atol=0)


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
def test_values_are_spread(cupy, dtype, offsets, width):
    values, out = normal(dtype, len(offsets) - 1, width), normal(dtype, offsets[-1], width)
    with launches(bool(offsets[-1])):
        assert_versions_agree(segment.spread_segments, values, offsets, out, rtol=0, atol=0)


def test_the_bits_of_a_reduction_do_not_depend_on_the_other_segments(cupy, dtype):
    for offsets, width in ((LONG, 1), (SEGMENTS["uneven"], 1), (SEGMENTS["uneven"], 33)):
        rows = cupy.asarray(normal(dtype, offsets[-1], width).array)
        together = cupy.empty((len(offsets) - 1, width), dtype)
        alone = cupy.empty(together.shape, dtype)
        segment.reduce_segments(np.add, rows, offsets, together, 0)
        for k, (start, end) in enumerate(pairwise(offsets)):
            ends = np.array([0, end - start])
            segment.reduce_segments(np.add, rows[start:end], ends, alone[k : k + 1], 0)
        queue().flush()
        assert alone.get().tobytes() == together.get().tobytes()


def test_more_elements_than_a_table_can_number_are_refused():
    with pytest.raises(ShapeError, match="segments of 4294967296 rows"):
        segment_table(np.array([0, 5, 1 << 32]))
    assert segment_table(np.array([0, 1 << 31, 1 << 32])) == (None, 1 << 31)
