"""Convolutions in C: what NumPy's versions leave, whatever the layout of the weight."""

import numpy as np
import pytest

from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.images import window_patches
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import multiplying
from tests.kernels.c.compare import Scratch, assert_same

SIDES = np.array([(4, 5), (9, 3), (3, 3), (3, 17), (12, 40)])
HOW = [
    ((3, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (1, 1), (1, 2)),
    ((2, 3), (1, 2), (1, 1), (2, 1)), ((1, 5), (1, 1), (0, 4), (1, 1)),
]  # fmt: skip


def case(how, inputs, outputs, dtype, by_position):
    patches, generator = window_patches(SIDES, *how), np.random.default_rng(0)
    counts = int(patches.reads[-1]), int(patches.offsets[-1])
    # Rows of wider arrays: their elements lie apart.
    x, dy = [
        generator.normal(size=(n, width + 3)).astype(dtype)[:, 1 : width + 1]
        for n, width in zip(counts, (inputs, outputs), strict=True)
    ]
    shape = (outputs, patches.positions * inputs) if by_position else (outputs, inputs, *how[0])
    return patches, x, dy, generator.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 5), (70, 100)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_patches_are_numpys(how, by_position, inputs, outputs, dtype):
    patches, x, dy, weight = case(how, inputs, outputs, dtype, by_position)
    pixels, scale = patches.reversed(), np.asarray(0.05, dtype)
    weight *= scale
    scratch = Scratch(kernels.workspace(weight, patches), dtype)
    back = Scratch(kernels.workspace_backward(weight, pixels), dtype)
    bias = np.arange(outputs, dtype=dtype)
    for y in (dy, np.ones_like(dy)):
        assert_same(kernels.convolve, x, patches, weight, bias, scratch, y)
        assert_same(kernels.convolve, x, patches, weight, None, scratch, y)
        assert_same(kernels.convolve_backward, y, pixels, weight, back, x)
        assert_same(kernels.convolve_backward, y, pixels, weight, back, x, bias=x[0].copy())
        assert_same(kernels.weight_gradient, x, patches, y * scale, scratch, weight)


@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 5), (70, 100), (117, 65)])
def test_products_of_rounded_factors_are_numpys(by_position, inputs, outputs):
    """Positions of odd widths, whose pairs are of two positions; several parts of terms."""
    for how in HOW:
        patches, x, dy, weight = case(how, inputs, outputs, "float32", by_position)
        scratch = Scratch(kernels.workspace(weight, patches), "float32")
        back = Scratch(kernels.workspace_backward(weight, patches.reversed()), "float32")
        weight *= np.float32(0.01)
        with multiplying("bfloat16"):
            assert_same(kernels.convolve, x, patches, weight, None, scratch, dy)
            assert_same(kernels.convolve_backward, dy, patches.reversed(), weight, back, x)
            small = dy * np.float32(0.01)
            assert_same(kernels.weight_gradient, x, patches, small, scratch, weight)


@pytest.mark.parametrize("matmul", ["float32", "bfloat16"])
def test_any_threads_leave_the_same_bits(monkeypatch, matmul):
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    patches, x, dy, weight = case(HOW[-1], 70, 100, "float32", True)

    def results():
        scratch = np.empty(kernels.workspace(weight, patches), np.float32)
        y, gradient = np.empty_like(dy), np.empty_like(weight)
        with multiplying(matmul):
            kernels.convolve(x, patches, weight, None, scratch, y)
            kernels.weight_gradient(x, patches, dy, scratch, gradient)
        return y.tobytes(), gradient.tobytes()

    alone = []
    for threads in (1, 3):
        monkeypatch.setattr(parallel, "available", lambda threads=threads: threads)
        alone.append(results())
    assert alone[0] == alone[1]


def test_without_patches_the_gradient_is_zero():
    patches = window_patches(np.zeros((0, 2), int), (1, 3), (1, 1), (0, 2))
    gradient = np.full((4, 6), np.nan, np.float32)
    rows = [np.empty((0, width), np.float32) for width in (2, 4)]
    kernels.weight_gradient(rows[0], patches, rows[1], np.empty(99, np.float32), gradient)
    assert not gradient.any()
