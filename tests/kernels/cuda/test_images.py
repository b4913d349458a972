import numpy as np
import pytest

from dynbatch.kernels import convolution
from dynbatch.kernels import images as kernels
from tests.kernels.cuda.compare import Values, assert_versions_agree
from tests.kernels.cuda.test_segment import normal
from tests.kernels.table.patches import HOW, SIDES


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_position", [True, False])
def test_convolutions_in_chunks(cupy, dtype, how, groups, by_position, monkeypatch):
    """All of a convolution, whose kernels are those above and products."""
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 1)
    monkeypatch.setattr(convolution, "LEAST_ROWS", 50)
    patches = kernels.window_patches(np.array(SIDES["large"]), *how)
    rows, count = int(patches.reads[-1]), int(patches.offsets[-1])
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
