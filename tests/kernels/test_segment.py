import itertools

import numpy as np
import pytest

from dynbatch.kernels import segment

pytestmark = pytest.mark.usefixtures("block")


def packed(lengths, width, seed=0):
    """Random rows and the offsets of their segments."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return np.random.default_rng(seed).standard_normal((offsets[-1], width)), offsets


def parts(rows, offsets):
    """The rows of each segment."""
    return [rows[a:b] for a, b in itertools.pairwise(offsets)]


def test_wide_sums_have_the_same_bits_in_any_batch():
    rows, offsets = packed([30, 2, 2, 1, 7, 7, 2, 90, 2, 2], 64)
    rows = rows.astype(np.float32)
    together = np.empty((10, 64), np.float32)
    segment.sum_segments(rows, offsets, together)
    for alone, part in zip(together, parts(rows, offsets), strict=True):
        out = np.empty((1, 64), np.float32)
        segment.sum_segments(part, np.array([0, len(part)]), out)
        assert out.tobytes() == alone.tobytes()
