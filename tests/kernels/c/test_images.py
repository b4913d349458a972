"""Patches of images in C: threads, and what NumPy does."""

import numpy as np

from dynbatch.kernels import images as kernels
from dynbatch.kernels.runtime import parallel

SIDES = np.array([(4, 5), (9, 3), (3, 3), (3, 17)])


def case(how, width):
    patches, generator = kernels.window_patches(SIDES, *how), np.random.default_rng(0)
    counts = int(patches.reads[-1]), int(patches.offsets[-1])
    return patches, *[generator.normal(size=(n, width)).astype(np.float32) for n in counts]


def test_any_threads_leave_the_same_bits(monkeypatch):
    patches, x, y = case(((3, 2), (2, 1), (1, 0), (1, 2)), 5)
    kernels.sum_patches(x, patches, 0.5, y)
    alone = y.copy()
    monkeypatch.setattr(parallel, "shards", lambda count, least: [(0, 1), (1, 9), (9, count)])
    y[...] = 0
    kernels.sum_patches(x, patches, 0.5, y)
    assert alone.tobytes() == y.tobytes()


def test_places_of_another_width_are_left_to_numpy():
    patches, x, y = case(((2, 2), (1, 1), (0, 0), (1, 1)), 3)
    place = np.zeros(y.shape, np.int64)
    kernels.max_patches(x, patches, y, place)
    assert 0 < place.max() < 4
