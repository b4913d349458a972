"""The largest elements of rows."""

import numpy as np
import pytest

from dynbatch.kernels.choosing.ranks import rank_rows


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("width", [9, 200])
def test_ranks_are_those_of_a_stable_sort(count, width):
    rng = np.random.default_rng(count)
    x = np.round(rng.normal(size=(7, width)), 1)
    x[2, 1:] = -np.inf
    x[3] = 5
    out = np.empty((7, count), np.int64)
    rank_rows(x, out)
    assert (out == np.argsort(-x, axis=1, kind="stable")[:, :count]).all()


def test_a_row_of_nan_does_not_disturb_the_others():
    x = np.array([[np.nan] * 4, [1.0, 3.0, 2.0, 3.0], [np.nan, 1, 2, 3]])
    out = np.empty((3, 2), np.int64)
    rank_rows(x, out)
    assert out[1].tolist() == [1, 3]
