"""Filling, copying, repeating, summing: against the same written out."""

import numpy as np
import pytest

from dynbatch.kernels import arrays

pytestmark = pytest.mark.usefixtures("block")

X = np.arange(12.0)
OFFSETS = np.array([0, 4, 4, 5, 12])
NUMBERS = np.array([2.0, 9.0, -1.0, 0.5])
EACH = np.repeat(NUMBERS, np.diff(OFFSETS))


def test_scale_and_shift_by_segment():
    out = np.empty(12)
    arrays.scale_segments(X, NUMBERS, OFFSETS, out)
    np.testing.assert_array_equal(out, X * EACH)
    arrays.shift_segments(X, NUMBERS, OFFSETS, out)
    np.testing.assert_array_equal(out, X + EACH)


def test_one_number_for_all_keeps_the_type():
    out = np.empty(12, np.float32)
    arrays.scale_segments(X.astype(np.float32), np.full(4, 0.1), OFFSETS, out)
    np.testing.assert_array_equal(out, X.astype(np.float32) * np.float32(0.1))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("repeats", [None, np.array([2, 0, 3, 1])])
def test_expand_and_its_gradient(columns, repeats):
    x = np.arange(4.0 * columns).reshape(4, columns)
    counts = np.ones(4, int) if repeats is None else repeats
    out = np.empty((int(counts.sum()), 3))
    arrays.expand(x, repeats, out)
    np.testing.assert_array_equal(out, np.broadcast_to(np.repeat(x, counts, axis=0), out.shape))
    dy = np.arange(out.size, dtype=float).reshape(out.shape)
    dx = np.empty_like(x)
    arrays.expand_backward(dy, repeats, dx)
    rows = np.repeat(np.arange(4), counts)
    expected = np.zeros((4, 3))
    np.add.at(expected, rows, dy)
    if columns == 1:
        expected = expected.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(dx, expected)


def test_transpose_of_segments_with_rows_and_columns_of_their_own():
    shapes = [(2, 3), (1, 4), (2, 1)]
    out = np.empty(12)
    arrays.transpose_segments(X, shapes, out)
    expected = [X[:6].reshape(2, 3).T, X[6:10].reshape(1, 4).T, X[10:].reshape(2, 1).T]
    np.testing.assert_array_equal(out, np.concatenate([part.ravel() for part in expected]))


def test_a_flat_array_is_distributed_over_shapes():
    outs = [np.zeros((2, 3)), np.zeros(0), np.zeros((4, 2)).T]
    arrays.distribute(np.arange(14.0), outs)
    np.testing.assert_array_equal(outs[0], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(outs[2], np.arange(6.0, 14).reshape(2, 4))


def test_sums_of_no_rows_are_zero():
    out = np.full(3, np.nan)
    arrays.sum_rows(np.empty((0, 3)), out)
    np.testing.assert_array_equal(out, 0)


def test_what_was_downloaded_is_the_readers_own():
    value = arrays.download(X)
    value[0] = 7
    assert X[0] == 0
