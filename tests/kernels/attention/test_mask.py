import numpy as np
import pytest

from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from tests.attention_reference import visible

MASK = np.random.default_rng(0).random((9, 7)) < 0.5


@pytest.mark.parametrize(
    ("mask", "left", "right", "seen"),
    [
        (NO_MASK, None, None, None),
        (Mask(UNBOUNDED, 0), None, 0, None),
        (Mask(2, 2), 2, 2, None),
        (Mask(0, 0), 0, 0, None),
        (Mask(1, 0, MASK), 1, 0, MASK),
        (Mask(visible=MASK[0]), None, None, MASK[0]),
    ],
)
def test_every_block_hides_exactly_what_its_queries_may_not_see(mask, left, right, seen):
    expected = visible(9, 7, left, right, seen)
    for first in range(9):
        for last in range(first + 1, 10):
            low, high = mask.keys(first, last, 7)
            scores = np.zeros((2, last - first, high - low))
            mask.hide(scores, first, low)
            found = np.zeros((last - first, 7), bool)
            found[:, low:high] = scores[1] == 0
            assert (found == expected[first:last]).all()
            assert (scores[0] == scores[1]).all()


def test_the_range_of_keys_is_as_narrow_as_the_window():
    assert Mask(2, 1).keys(10, 14, 100) == (8, 15)
    assert Mask(2, 1).keys(10, 14, 9) == (8, 9)
    assert Mask(2, 1).keys(50, 51, 9) == (9, 9)
    assert NO_MASK.keys(3, 4, 9) == (0, 9)
