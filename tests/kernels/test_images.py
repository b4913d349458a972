import itertools

import numpy as np
import pytest

from dynbatch.kernels import images as kernels

SIDES = np.array([(4, 5), (3, 3), (7, 4)])
HOW = [((3, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (1, 1), (1, 2))]


def by_hand(x, how):
    """For each image its rows (H, W, C) with NaN around, and each window's as (positions, C)."""
    kernel, stride, padding, dilation = how
    start, windows = 0, []
    for h, w in SIDES:
        image = x[start : start + h * w].reshape(h, w, -1)
        start += h * w
        framed = np.pad(image, [(p, p) for p in padding] + [(0, 0)], constant_values=np.nan)
        ends = [n - d * (k - 1) for n, k, d in zip(framed.shape, kernel, dilation)]  # noqa: B905
        for y, z in itertools.product(*[range(0, n, s) for n, s in zip(ends, stride, strict=True)]):
            spans = [slice(at, at + d * (k - 1) + 1, d)
                     for at, k, d in zip((y, z), kernel, dilation, strict=True)]  # fmt: skip
            windows.append(framed[tuple(spans)].reshape(-1, x.shape[1]))
    return np.array(windows)


@pytest.mark.parametrize("how", HOW)
def test_patches_are_those_of_a_loop_over_framed_images(how):
    x = np.random.default_rng(0).integers(-3, 3, (int(SIDES.prod(1).sum()), 2)).astype(float)
    patches, expected = kernels.window_patches(SIDES, *how), by_hand(x, how)
    assert patches.offsets[-1] == len(expected)
    out = np.full((len(expected), expected[0].size), np.nan)
    kernels.unfold(x, patches, 0, out)
    assert np.array_equal(out.reshape(expected.shape), np.nan_to_num(expected))
    kernels.unfold(x, patches, 0, out, groups=2)
    by_group = np.nan_to_num(expected).swapaxes(1, 2)
    assert np.array_equal(out.reshape(by_group.shape), by_group)
    kernels.unfold(x, patches, 0, out)
    part = np.full((3, expected[0].size), np.nan)
    kernels.unfold(x, patches, 5, part)
    assert np.array_equal(part, out[5:8])
    sums, largest = np.full((2, len(expected), 2), np.nan)
    place = np.full(largest.shape, -1, np.int64)
    kernels.sum_patches(x, patches, 0.5, sums)
    kernels.max_patches(x, patches, largest, place)
    np.testing.assert_allclose(sums, 0.5 * np.nansum(expected, 1), atol=1e-12)
    assert np.array_equal(largest, np.nanmax(expected, 1))
    assert np.array_equal(place, np.nanargmax(expected, 1))


def test_padding_behind_may_be_another():
    front = kernels.window_patches(np.array([(2, 1)]), (1, 2), (1, 1), (0, 0), (1, 1), (0, 1))
    assert front.sides.tolist() == [[2, 1, 2, 1]]
    rows = [row.tolist() for row in front.rows(slice(0, 2))]
    assert rows == [[0, 1], [-1, -1]]


@pytest.mark.parametrize("how", HOW)
def test_reversed_patches_are_the_transposed_map(how):
    generator = np.random.default_rng(1)
    patches = kernels.window_patches(SIDES, *how)
    rows, count = int(patches.reads[-1]), int(patches.offsets[-1])
    x, dy = generator.normal(size=(rows, 2)), generator.normal(size=(count, 2))
    y, dx = np.full_like(dy, np.nan), np.full_like(x, np.nan)
    kernels.sum_patches(x, patches, 1, y)
    kernels.sum_patches(dy, patches.reversed(), 1, dx)
    assert (y * dy).sum() == pytest.approx((x * dx).sum())
    place = np.full(dy.shape, -1, np.int64)
    kernels.max_patches(x, patches, y, place)
    kernels.max_patches_backward(dy, patches.reversed(), place, dx)
    assert (y * dy).sum() == pytest.approx((x * dx).sum())


def test_the_place_of_minus_infinity_is_inside_the_image():
    patches = kernels.window_patches(np.array([(2, 2)]), (3, 3), (1, 1), (1, 1))
    x, y, place = np.full((4, 1), -np.inf), np.empty((4, 1)), np.empty((4, 1), np.int64)
    kernels.max_patches(x, patches, y, place)
    assert place[:, 0].tolist() == [4, 3, 1, 0]
