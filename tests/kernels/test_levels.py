"""`levels`: C and NumPy find the longest chains."""

import numpy as np

from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.levels import levels


def test_levels_are_the_longest_chains():
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 5, 40, 200):
        order = rng.permutation(count)
        ends = np.sort(rng.integers(max(count, 1), size=(2, 2 * count)), axis=0)
        read, readers = [order[end] for end in ends[:, ends[0] < ends[1]]]
        expected = np.zeros(count, np.int64)
        for node in order:
            for reader in readers[read == node]:
                expected[reader] = max(expected[reader], expected[node] + 1)
        with reference_only():
            assert np.array_equal(levels(count, readers, read), expected)
        assert np.array_equal(levels(count, readers, read), expected)
