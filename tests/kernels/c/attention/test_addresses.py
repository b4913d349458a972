"""Rows written and read by their addresses, in C and without it."""

from contextlib import nullcontext

import numpy as np
import pytest

from dynbatch.kernels.attention.addresses import read_rows, write_rows
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.runtime.precision import round_to


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_go_anywhere_and_come_back_with_and_without_c(dtype):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, 9)).astype(dtype)[:, 2:9]  # neighbours are further apart
    home = np.full((3, 40), 7, dtype)
    places = np.array([(2, 33), (0, 0), (1, 20), (0, 7), (2, 1)])
    addresses = address(home) + (places @ (40, 1)) * home.itemsize
    found = np.empty((5, 7), dtype)
    write_rows(rows, addresses, False)
    with reference_only():
        read_rows(addresses, found, False)
    assert found.tobytes() == rows.tobytes()
    for (row, column), expected in zip(places, rows, strict=True):
        np.testing.assert_array_equal(home[row, column : column + 7], expected)
    assert (home == 7).sum() == home.size - rows.size
    before = home.copy()
    home[...] = 7
    with reference_only():
        write_rows(rows, addresses, False)
    assert home.tobytes() == before.tobytes()
    found[...] = 0
    read_rows(addresses, found, False)
    assert found.tobytes() == rows.tobytes()


@pytest.mark.parametrize("width", [1, 16, 37])
def test_rows_are_rounded_to_bfloat16_where_they_are_written_with_and_without_c(width):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, 2 * width)).astype(np.float32)[:, :width]
    rows[0, 0], rows[1, -1], rows[2, 0] = np.nan, np.inf, 1e-40
    homes = np.full((2, 5 * width + 1), 7, np.uint16)
    found = np.empty((2, 5, width), np.float32)
    for home, out, where in zip(homes, found, (nullcontext, reference_only), strict=True):
        addresses = address(home) + np.arange(5)[::-1] * (2 * width)
        with where():
            write_rows(rows, addresses, True)
            read_rows(addresses, out, True)
    assert homes[0].tobytes() == homes[1].tobytes() and (homes[:, -1] == 7).all()
    assert found[0].tobytes() == found[1].tobytes() == round_to(rows, "bfloat16").tobytes()
