"""Rows in pages, found by their addresses."""

import numpy as np
import pytest

from dynbatch.kernels.attention.addresses import PagedRows, PageTable
from dynbatch.kernels.c.runtime.arrays import address


@pytest.mark.parametrize("gaps", [None, [(7, 1), (99, 0), (1, 3)]])
def test_new_rows_of_sentences_follow_those_in_their_pages(gaps):
    rng, widths, height = np.random.default_rng(0), (3, 2), 4
    counts, before, new = [4, 1, 2], np.array([7, 0, 4]), np.array([5, 2, 1])
    gaps = None if gaps is None else np.array(gaps)
    pages = [np.full(height * sum(widths), np.nan) for _ in range(sum(counts))]
    bases = np.array([address(page) for page in pages])

    def rows(lengths, more):
        return PagedRows(PageTable(bases, counts, lengths, more, height, gaps), (0, 96), widths)

    first = [rng.standard_normal((before.sum(), width)) for width in widths]
    added = [rng.standard_normal((new.sum(), width)) for width in widths]
    rows(np.zeros_like(before), before).append(*first)
    rows(before, new).append(*added)
    ends, new_ends = np.cumsum(before)[:-1], np.cumsum(new)[:-1]
    found = rows(before, new).joined(np.zeros(0))
    for side, old, late in zip(found, first, added, strict=True):
        parts = zip(np.split(old, ends), np.split(late, new_ends), strict=True)
        np.testing.assert_array_equal(side, np.concatenate([x for pair in parts for x in pair]))
    filled = [int((~np.isnan(page)).sum()) // 5 for page in pages]
    assert filled == ([4, 4, 4, 0, 2, 4, 1] if gaps is None else [4, 3, 4, 1, 2, 1, 4])
