"""`kernels.kmax_pool` in C: how many are kept, threads, and what NumPy does."""

import numpy as np

from dynbatch.kernels import kmax_pool as kernels
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import run_both

MOST = vars(kernels.kmax_pool)["most"]["k"]
LENGTHS = [5, 16, 4, 17, 70]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])


def assert_same_bits(kernel, *args):
    for mine, reference in run_both(kernel, *args):
        assert mine.tobytes() == reference.tobytes()


def test_as_many_as_are_kept_and_one_more():
    x = np.random.default_rng(2).standard_normal((150, 3)).astype(np.float32)
    offsets, out = np.array([0, 70, 150]), np.empty((2 * MOST, 3), np.float32)
    assert_same_bits(kernels.kmax_pool, x, offsets, MOST, out, np.zeros(out.shape, np.int32))
    out = np.empty((2 * MOST + 2, 3), np.float32)
    kernels.kmax_pool(x, offsets, MOST + 1, out, None)
    expected = np.sort(x[:70], axis=0)[-MOST - 1 :]
    assert np.array_equal(np.sort(out[: MOST + 1], axis=0), expected)


def test_any_threads_leave_the_same_bits(monkeypatch):
    x = np.random.default_rng(3).standard_normal((int(OFFSETS[-1]), 5))
    alone, shared = np.empty((2, 10, 5))
    kernels.kmax_pool(x, OFFSETS, 2, alone, None)
    monkeypatch.setattr(parallel, "shards", lambda count, least: [(0, 1), (1, 3), (3, count)])
    kernels.kmax_pool(x, OFFSETS, 2, shared, None)
    assert alone.tobytes() == shared.tobytes()


def test_places_of_another_width_are_left_to_numpy():
    x = np.random.default_rng(4).standard_normal((5, 2)).astype(np.float32)
    out, place = np.empty((2, 2), np.float32), np.full((2, 2), -1, np.int64)
    kernels.kmax_pool(x, np.array([0, 5]), 2, out, place)
    assert np.array_equal(np.sort(place, axis=0), np.sort(np.argsort(x, axis=0)[-2:], axis=0))
