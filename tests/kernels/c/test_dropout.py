"""`kernels.dropout` in C against NumPy."""

from itertools import pairwise

import numpy as np
import pytest

from dynbatch.kernels import dropout as kernels
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import assert_same, run_both

LENGTHS = [0, 1, 5, 16, 17, 0, 300]


def drawn(dtype, seed=0):
    """Elements of segments, their streams, their probabilities and offsets."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    x = rng.standard_normal(int(offsets[-1])).astype(dtype)
    streams = rng.integers(0, 2**32, len(LENGTHS), dtype=np.uint32)
    return x, streams, np.array([0.5, 0, 0.1, 0.9, 1, 1, 0.3]), offsets


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout_has_the_bits_of_numpys(dtype):
    x, *tables = drawn(dtype)
    x[::7], x[3::7] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        pairs = list(run_both(kernels.dropout, x, *tables, np.empty_like(x)))
    for mine, reference in pairs:
        np.testing.assert_array_equal(mine, reference)
        assert (np.signbit(mine) == np.signbit(reference)).all()
    assert_same(kernels.dropout, x[:0], *[t[:0] for t in tables[:2]], np.array([0]), x[:0])


def test_threads_and_places_do_not_change_a_bit(monkeypatch):
    x, streams, probabilities, offsets = drawn(np.float32)
    whole, shared = np.empty_like(x), x.copy()
    kernels.dropout(x, streams, probabilities, offsets, whole)
    cuts = [(0, 3), (3, 22), (22, 100), (100, x.size)]
    monkeypatch.setattr(parallel, "shards", lambda count, least=1: cuts)
    kernels.dropout(shared, streams, probabilities, offsets, shared)
    assert shared.tobytes() == whole.tobytes()
    monkeypatch.undo()
    for k, (start, end) in enumerate(pairwise(offsets)):
        alone, own = np.empty(end - start, np.float32), slice(k, k + 1)
        own_offsets = np.array([0, end - start])
        kernels.dropout(x[start:end], streams[own], probabilities[own], own_offsets, alone)
        assert alone.tobytes() == whole[start:end].tobytes()


def test_an_element_is_kept_where_its_bits_reach_p():
    x, out = np.ones(50, np.float32), np.empty(50, np.float32)
    offsets, stream = np.array([0, 50]), np.array([9], np.uint32)
    kernels.dropout(x, stream, np.array([0.25]), offsets, out)
    bits = kernels.random_bits(stream, offsets, 0, 50)
    assert ((out != 0) == (bits >= 1 << 30)).all()
