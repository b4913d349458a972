"""`kernels.segment` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import segment as kernels
from tests.kernels.c.compare import assert_same

LENGTHS = [0, 1, 5, 16, 17, 0, 70]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WIDTHS = pytest.mark.parametrize("width", [1, 3, 16, 70, 131])


def drawn(width, dtype):
    """Rows of the segments, a value for each segment, and room for both."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((OFFSETS[-1], width)).astype(dtype)
    values = rng.standard_normal((len(LENGTHS), width)).astype(dtype)
    return rows, values, np.empty_like(rows), np.empty_like(values)


@DTYPES
@WIDTHS
def test_reductions(width, dtype):
    rows, _, _, out = drawn(width, dtype)
    for ufunc, empty in ((np.add, 0), (np.maximum, -2), (np.minimum, 9)):
        assert_same(kernels.reduce_segments, ufunc, rows, OFFSETS, out, empty)
    assert_same(kernels.reduce_segments, np.add, rows[:0], np.array([0]), out[:0], 0)


@DTYPES
@WIDTHS
def test_values_beside_rows(width, dtype):
    rows, values, whole, _ = drawn(width, dtype)
    assert_same(kernels.spread_segments, values, OFFSETS, whole)
    for ufunc in (np.subtract, np.multiply):
        assert_same(kernels.combine_segments, ufunc, rows, values, OFFSETS, whole)
        expected = np.empty_like(rows)
        kernels.combine_segments(ufunc, rows, values, OFFSETS, expected)
        mine = rows.copy()
        kernels.combine_segments(ufunc, mine, values, OFFSETS, mine)
        assert mine.tobytes() == expected.tobytes()


@DTYPES
def test_extrema_that_are_not_numbers_win(dtype):
    rows = drawn(20, dtype)[0]
    rows[::9, ::2], rows[3::9, 1::3] = np.nan, np.inf
    for width, x in ((20, rows), (1, rows.reshape(-1, 1).copy())):
        offsets = OFFSETS * (20 // width)
        for ufunc in (np.maximum, np.minimum):
            out = np.empty((len(LENGTHS), width), dtype)
            assert_same(kernels.reduce_segments, ufunc, x, offsets, out, 0)


@DTYPES
def test_the_first_of_equal_values_and_of_nans_is_found(dtype):
    offsets = np.unique(OFFSETS)
    rows = np.random.default_rng(1).integers(0, 4, (offsets[-1], 37)).astype(dtype)
    rows[::11, ::5] = np.nan
    values = np.empty((offsets.size - 1, 37), dtype)
    kernels.reduce_segments(np.maximum, rows, offsets, values, 0)
    found = np.empty(values.shape, f"i{rows.itemsize}")
    assert_same(kernels.first_in_segments, rows, values, offsets, found)


@pytest.mark.parametrize("width", [1, 37])
def test_a_segment_has_the_same_bits_alone(width):
    rows, _, _, out = drawn(width, np.float32)
    kernels.reduce_segments(np.add, rows, OFFSETS, out, 0)
    for k, (start, length) in enumerate(zip(OFFSETS, LENGTHS, strict=False)):
        alone, own = np.empty((1, width), np.float32), rows[start : start + length].copy()
        kernels.reduce_segments(np.add, own, np.array([0, length]), alone, 0)
        assert alone.tobytes() == out[k].tobytes()
