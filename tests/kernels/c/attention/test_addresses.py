"""Rows written and read by their addresses, in C and without it."""

import numpy as np
import pytest

from dynbatch.kernels.attention.addresses import read_rows, write_rows
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import reference_only


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_go_anywhere_and_come_back_with_and_without_c(dtype):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, 9)).astype(dtype)[:, 2:9]  # neighbours are further apart
    home = np.full((3, 40), 7, dtype)
    places = np.array([(2, 33), (0, 0), (1, 20), (0, 7), (2, 1)])
    addresses = address(home) + (places @ (40, 1)) * home.itemsize
    found = np.empty((5, 7), dtype)
    write_rows(rows, addresses)
    with reference_only():
        read_rows(addresses, found)
    assert found.tobytes() == rows.tobytes()
    for (row, column), expected in zip(places, rows, strict=True):
        np.testing.assert_array_equal(home[row, column : column + 7], expected)
    assert (home == 7).sum() == home.size - rows.size
    before = home.copy()
    home[...] = 7
    with reference_only():
        write_rows(rows, addresses)
    assert home.tobytes() == before.tobytes()
    found[...] = 0
    read_rows(addresses, found)
    assert found.tobytes() == rows.tobytes()
