"""`kernels.segment` in C: a segment alone."""

import numpy as np
import pytest

from dynbatch.kernels import segment as kernels

LENGTHS = [0, 1, 5, 16, 17, 0, 70]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])


@pytest.mark.parametrize("width", [1, 37])
def test_a_segment_has_the_same_bits_alone(width):
    rows = np.random.default_rng(1).standard_normal((OFFSETS[-1], width)).astype(np.float32)
    out = np.empty((len(LENGTHS), width), np.float32)
    kernels.reduce_segments(np.add, rows, OFFSETS, out, 0)
    for k, (start, length) in enumerate(zip(OFFSETS, LENGTHS, strict=False)):
        alone, own = np.empty((1, width), np.float32), rows[start : start + length].copy()
        kernels.reduce_segments(np.add, own, np.array([0, length]), alone, 0)
        assert alone.tobytes() == out[k].tobytes()
