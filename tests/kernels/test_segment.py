import itertools

import numpy as np
import pytest

from dynbatch.kernels import segment

pytestmark = pytest.mark.usefixtures("block")

LENGTHS = [[3, 0, 1, 7], [], [0], [0, 0], [1], [5, 5, 5], [1] * 40, [30, 2, 2, 1, 2, 2, 90], [0, 4]]
WIDTHS = [1, 3, 32, 33, 100]


def packed(lengths, width, seed=0):
    """Random rows and the offsets of their segments."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return np.random.default_rng(seed).standard_normal((offsets[-1], width)), offsets


def parts(rows, offsets):
    """The rows of each segment."""
    return [rows[a:b] for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_reductions_equal_a_loop_over_segments(lengths, width):
    rows, offsets = packed(lengths, width)
    before = rows.copy()
    for ufunc, empty in ((np.add, 0), (np.maximum, -np.inf), (np.minimum, 9)):
        out = np.full((len(lengths), width), np.nan)
        segment.reduce_segments(ufunc, rows, offsets, out, empty)
        for found, part in zip(out, parts(rows, offsets), strict=True):
            expected = ufunc.reduce(part, axis=0) if len(part) else np.full(width, empty)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (rows == before).all()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_combining_and_spreading_repeat_a_value_over_its_segment(lengths, width):
    rows, offsets = packed(lengths, width)
    values = np.random.default_rng(1).standard_normal((len(lengths), width))
    repeated = np.repeat(values, lengths, axis=0)
    out = np.full_like(rows, np.nan)
    segment.spread_segments(values, offsets, out)
    assert (out == repeated).all()
    segment.combine_segments(np.subtract, rows, values, offsets, out)
    assert (out == rows - repeated).all()
    segment.combine_segments(np.multiply, out, values, offsets, out)  # in place
    assert (out == (rows - repeated) * repeated).all()


@pytest.mark.parametrize("lengths", [x for x in LENGTHS if 0 not in x])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_first_of_equal_rows_is_found(lengths, width, dtype):
    rows, offsets = packed(lengths, width)
    rows = np.round(rows)  # ties
    values = np.array([part.max(axis=0) for part in parts(rows, offsets)]).reshape(-1, width)
    out = np.empty((len(lengths), width), dtype)
    segment.first_in_segments(rows, values, offsets, out)
    expected = [part.argmax(axis=0) for part in parts(rows, offsets)]
    assert out.tolist() == np.array(expected).reshape(-1, width).tolist()


def test_the_first_nan_is_found_as_itself():
    rows = np.array([[1.0, np.nan], [np.nan, 2.0], [np.nan, 3.0], [4.0, 5.0]])
    out = np.empty((2, 2), np.int64)
    values = np.array([[np.nan, np.nan], [4.0, 5.0]])
    segment.first_in_segments(rows, values, np.array([0, 3, 4]), out)
    assert out.tolist() == [[1, 0], [0, 0]]


def test_wide_sums_have_the_same_bits_in_any_batch():
    rows, offsets = packed([30, 2, 2, 1, 7, 7, 2, 90, 2, 2], 64)
    rows = rows.astype(np.float32)
    together = np.empty((10, 64), np.float32)
    segment.sum_segments(rows, offsets, together)
    for alone, part in zip(together, parts(rows, offsets), strict=True):
        out = np.empty((1, 64), np.float32)
        segment.sum_segments(part, np.array([0, len(part)]), out)
        assert out.tobytes() == alone.tobytes()
