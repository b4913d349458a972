import numpy as np
import pytest

from dynbatch.kernels import convolution
from dynbatch.kernels import images as kernels
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

SIDES = {
    "uneven": [(4, 5), (9, 3), (3, 3), (30, 41), (5, 8)],
    "of one size": [(6, 5)] * 12,
    "one": [(3, 7)],
}
IMAGES = pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES.keys())
HOW = pytest.mark.parametrize(
    "how",
    [((3, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (1, 1), (1, 2)),
     ((2, 3), (1, 2), (1, 1), (2, 1))],
)  # fmt: skip


def patches_of(sides, how):
    patches = kernels.window_patches(np.array(sides), *how)
    return patches, int(patches.reads[-1]), int(patches.offsets[-1])


@IMAGES
@HOW
@pytest.mark.parametrize("width", [1, 33])
def test_unfolding_all_and_some(cupy, dtype, sides, how, width):
    patches, rows, count = patches_of(sides, how)
    x, dy = normal(dtype, rows, width), normal(dtype, count, width)
    for source, each, total in ((x, patches, count), (dy, patches.reversed(), rows)):
        with launches(3):
            for first, end in ((0, total), (1, total), (total // 3, total - total // 3)):
                out = normal(dtype, end - first, patches.positions * width)
                assert_versions_agree(kernels.unfold, source, each, first, out, rtol=0, atol=0)


@HOW
@pytest.mark.parametrize(("width", "groups"), [(6, 2), (5, 5)])
def test_unfolding_by_group(cupy, dtype, how, width, groups):
    patches, rows, count = patches_of(SIDES["uneven"], how)
    x, out = normal(dtype, rows, width), normal(dtype, count - 1, patches.positions * width)
    with launches(1):
        assert_versions_agree(kernels.unfold, x, patches, 1, out, rtol=0, atol=0, groups=groups)


@IMAGES
@HOW
@pytest.mark.parametrize("width", [1, 33])
def test_pools(cupy, dtype, sides, how, width):
    patches, rows, count = patches_of(sides, how)
    x, out = normal(dtype, rows, width), normal(dtype, count, width)
    x.array[...] = np.round(x.array)  # ties
    x.array[7::31] = -np.inf
    place = Values(np.full((count, width), -1, f"i{dtype.itemsize}"))
    with launches(3):
        assert_versions_agree(kernels.max_patches, x, patches, out, None, rtol=0, atol=0)
        *_, place = assert_versions_agree(kernels.max_patches, x, patches, out, place, rtol=0,
                                          atol=0)  # fmt: skip
        back = patches.reversed()
        assert_versions_agree(kernels.max_patches_backward, out, back, Values(place), x)
    x = normal(dtype, rows, width)
    with launches(2):
        assert_versions_agree(kernels.sum_patches, x, patches, 0.25, out)
        assert_versions_agree(kernels.sum_patches, out, patches.reversed(), 0.25, x)


def test_swapping(cupy, dtype):
    for shape in ((1, 1, 1), (5, 3, 9), (1, 70, 33)):
        x, out = [Values(normal(dtype, *shape).array.reshape(-1)) for _ in range(2)]
        with launches(1):
            assert_versions_agree(kernels.swap_inner, x, shape, out, rtol=0, atol=0)


@HOW
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_position", [True, False])
def test_convolutions_in_chunks(cupy, dtype, how, groups, by_position, monkeypatch):
    """All of a convolution, whose kernels are those above and products."""
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 1)
    monkeypatch.setattr(convolution, "LEAST_ROWS", 50)
    patches, rows, count = patches_of(SIDES["uneven"], how)
    x, dy = normal(dtype, rows, 3), normal(dtype, count, 6)
    shape = (6, 3 // groups, *how[0])
    if by_position:
        shape = (6, 3 // groups * patches.positions)
    weight = Values(np.random.default_rng(3).normal(size=shape).astype(dtype))
    assert count > 50
    scratch = Values(np.zeros(convolution.workspace(weight.array, patches, groups), dtype))
    back = Values(np.zeros(convolution.workspace_backward(weight.array, patches.reversed()), dtype))
    assert_versions_agree(
        convolution.convolve, x, patches, weight, normal(dtype, 6), scratch, dy, groups, rtol=1e-4,
        atol=1e-4,
    )  # fmt: skip
    assert_versions_agree(
        convolution.convolve_backward, dy, patches.reversed(), weight, back, x, groups,
        normal(dtype, 3), rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    assert_versions_agree(
        convolution.weight_gradient, x, patches, dy, scratch, weight, groups, rtol=1e-4, atol=1e-3
    )
