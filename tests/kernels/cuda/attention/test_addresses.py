"""Rows by their addresses on the device."""

import numpy as np
import pytest

from dynbatch.cupy_types import device_address
from dynbatch.kernels.attention.addresses import read_rows, write_rows
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import round_to, upper_halves
from tests.kernels.cuda.compare import launches


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 33), (300, 2), (3, 600)])
def test_rows_are_read_and_written_where_they_lie(cupy, dtype, rows, width):
    rng = np.random.default_rng(0)
    pages = [cupy.asarray(rng.standard_normal((rows, width)).astype(dtype)) for _ in range(2)]
    of_page, row = rng.permutation(2 * rows)[:rows] % 2, rng.permutation(rows)
    where = list(zip(of_page, row, strict=True))
    places = np.array([device_address(pages[p][r : r + 1]) for p, r in where])
    expected = np.stack([pages[p].get()[r] for p, r in where])
    wide = cupy.zeros((rows, width + 3), dtype)
    with launches(2):
        read_rows(places, wide[:, 1 : width + 1], False)
        write_rows(wide[:, :width], places, False)
        queue().flush()
    assert (wide.get()[:, 1 : width + 1] == expected).all()
    found = np.stack([pages[p].get()[r] for p, r in where])
    assert (found == wide.get()[:, :width]).all()


def test_no_rows_are_no_work(cupy, dtype):
    with launches(0):
        read_rows(np.zeros(0, np.int64), cupy.empty((0, 3), dtype), False)
        queue().flush()


def test_rows_are_rounded_to_bfloat16_where_they_are_written(cupy):
    rows = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    rows[0, :3] = np.nan, np.inf, 1e-40
    pages, out = cupy.zeros((5, 33), np.uint16), cupy.empty((5, 33), np.float32)
    places = device_address(pages) + np.arange(5)[::-1] * 66
    with launches(2):
        write_rows(cupy.asarray(rows), places, True)
        read_rows(places, out, True)
        queue().flush()
    rounded = round_to(rows, "bfloat16")
    assert pages.get()[::-1].tobytes() == upper_halves(rounded).tobytes()
    assert out.get().tobytes() == rounded.tobytes()
