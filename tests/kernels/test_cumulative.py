import itertools

import numpy as np
import pytest

from dynbatch.kernels.cumulative import cumsum_segments


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("width", [1, 4, 40])
@pytest.mark.parametrize("offsets", [[0, 3, 3, 4, 13], [0, 4, 8, 12], [0, 0, 0], [0]])
def test_running_sums_equal_a_loop(offsets, width, backwards, in_place):
    x = np.random.default_rng(0).standard_normal((offsets[-1], width))
    expected = np.empty_like(x)
    for start, end in itertools.pairwise(offsets):
        sums = np.zeros(width)
        for n in reversed(range(start, end)) if backwards else range(start, end):
            sums = sums + x[n]
            expected[n] = sums
    given = x.copy()
    out = given if in_place else np.full_like(x, np.nan)
    cumsum_segments(given, np.array(offsets), backwards, out)
    assert np.array_equal(out, expected)  # to the bit: added one after the other
    assert in_place or np.array_equal(given, x)
