"""Rows found by their addresses, one by one and in pages."""

import numpy as np
import pytest

from dynbatch.kernels.addresses import PagedRows, PageTable, read_rows, write_rows
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


def test_new_rows_of_sentences_follow_those_in_their_pages():
    rng, widths, height = np.random.default_rng(0), (3, 2), 4
    counts, before, new = [3, 1, 2], np.array([7, 0, 4]), np.array([5, 2, 1])
    pages = [np.full(height * sum(widths), np.nan) for _ in range(sum(counts))]
    bases = np.array([address(page) for page in pages])

    def rows(lengths, more):
        return PagedRows(PageTable(bases, counts, lengths, more, height), (0, 96), widths)

    first = [rng.standard_normal((before.sum(), width)) for width in widths]
    added = [rng.standard_normal((new.sum(), width)) for width in widths]
    rows(np.zeros_like(before), before).append(*first)
    rows(before, new).append(*added)
    ends, new_ends = np.cumsum(before)[:-1], np.cumsum(new)[:-1]
    found = rows(before, new).joined(np.dtype("float64"))
    for side, old, late in zip(found, first, added, strict=True):
        parts = zip(np.split(old, ends), np.split(late, new_ends), strict=True)
        np.testing.assert_array_equal(side, np.concatenate([x for pair in parts for x in pair]))
