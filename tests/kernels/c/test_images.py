"""Patches of images in C: what NumPy's version leaves."""

import numpy as np
import pytest

from dynbatch.kernels import images as kernels
from dynbatch.kernels.runtime import parallel
from tests.kernels.c.compare import assert_same

SIDES = np.array([(4, 5), (9, 3), (3, 3), (3, 17)])
HOW = pytest.mark.parametrize(
    "how",
    [((3, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (1, 1), (1, 2)),
     ((2, 3), (1, 2), (1, 1), (2, 1))],
)  # fmt: skip


def case(how, width, dtype):
    patches, generator = kernels.window_patches(SIDES, *how), np.random.default_rng(0)
    counts = int(patches.reads[-1]), int(patches.offsets[-1])
    # Rows of wider arrays: their elements lie apart.
    rows = [generator.normal(size=(n, width + 3)).astype(dtype)[:, 1 : width + 1] for n in counts]
    return patches, *rows


@HOW
@pytest.mark.parametrize("width", [18, 34])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_patches_of_two_groups_are_unfolded_as_by_numpy(how, width, dtype):
    patches, x, y = case(how, width, dtype)
    unfolded = np.ones((len(y) - 2, patches.positions * width), dtype)
    assert_same(kernels.unfold, x, patches, 2, unfolded, groups=2)


@HOW
@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_patches_are_unfolded_and_pooled_as_by_numpy(how, width, dtype):
    patches, x, y = case(how, width, dtype)
    for source, out, each in ((x, y, patches), (y, x, patches.reversed())):
        for first in (0, 1, len(out) // 2):
            unfolded = np.ones((len(out) - first, each.positions * width), dtype)
            assert_same(kernels.unfold, source, each, first, unfolded)
            assert_same(kernels.unfold, source, each, first, unfolded, groups=width)
        assert_same(kernels.sum_patches, source, each, 0.25, out)
    x[...] = np.round(x)  # ties
    x[3::11, 0], x[5::7] = np.nan, -np.inf
    place = np.full(y.shape, -1, f"i{y.itemsize}")
    assert_same(kernels.max_patches, x, patches, y, place)
    assert_same(kernels.max_patches, x, patches, y, None)
    kernels.max_patches(x, patches, y, place)
    y[...] = np.arange(y.size).reshape(y.shape)
    assert_same(kernels.max_patches_backward, y, patches.reversed(), place, x)


def test_any_threads_leave_the_same_bits(monkeypatch):
    patches, x, y = case(((3, 2), (2, 1), (1, 0), (1, 2)), 5, "float32")
    kernels.sum_patches(x, patches, 0.5, y)
    alone = y.copy()
    monkeypatch.setattr(parallel, "shards", lambda count, least: [(0, 1), (1, 9), (9, count)])
    y[...] = 0
    kernels.sum_patches(x, patches, 0.5, y)
    assert alone.tobytes() == y.tobytes()


def test_places_of_another_width_are_left_to_numpy():
    patches, x, y = case(((2, 2), (1, 1), (0, 0), (1, 1)), 3, "float32")
    place = np.zeros(y.shape, np.int64)
    kernels.max_patches(x, patches, y, place)
    assert 0 < place.max() < 4
