"""`kernels.histories`: keys in C are those in Python."""

import numpy as np
import pytest

from dynbatch.kernels.c.histories import keys_of_calls
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.histories import keys_of_calls as chosen


@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.parametrize("num_begins", [1, 2])
def test_keys_are_those_of_python(num_begins, is_continued):
    rng = np.random.default_rng(0)
    begins = [int(k) for k in rng.integers(2**32, size=num_begins)]
    counts = rng.integers(4, size=50)
    owners = np.repeat(np.arange(50), counts)
    known = rng.integers(2**32, size=owners.size) >> rng.integers(33, size=owners.size)
    reads = np.where(rng.random(owners.size) < 0.5, known, -1 - rng.integers(owners + 1) % 50)
    reads = np.where((reads < 0) & (-1 - reads == owners), 0, reads)  # none of itself
    arguments = reads, counts, begins, is_continued
    with reference_only():
        expected = chosen(*arguments)
    for keys, right in zip(keys_of_calls(*arguments), expected, strict=True):
        assert np.array_equal(keys, right)
    assert {*expected[1].tolist()} - {0}
