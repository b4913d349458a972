"""Rows in pages, found by their addresses."""

import numpy as np

from dynbatch.kernels.addresses import PagedRows, PageTable
from dynbatch.kernels.c.runtime.arrays import address


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
