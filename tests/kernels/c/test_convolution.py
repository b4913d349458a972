"""Convolutions in C: what NumPy's versions leave, whatever the layout of the weight."""

import numpy as np
import pytest

from dynbatch.kernels import blas
from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.images import unfold, window_patches
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


def mostly_zeros(dy):
    """The rows with three other numbers at most in each column, as a maximum over rows leaves."""
    chosen = np.random.default_rng(1).integers(0, len(dy), (3, dy.shape[1]))
    kept = np.zeros_like(dy)
    np.put_along_axis(kept, chosen, np.take_along_axis(dy, chosen, 0), 0)
    return kept


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("outputs", [5, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_that_are_mostly_zeros_have_the_bits_of_whole_products(how, outputs, dtype):
    patches, x, dy, weight = case(how, 70, outputs, dtype, True)
    pixels, dy = patches.reversed(), mostly_zeros(dy)
    assert 0 < np.count_nonzero(dy) < dy.size / 8
    back = np.empty(kernels.workspace_backward(weight, pixels), dtype)
    dx, dw, unfolded = np.empty((len(x), 70), dtype), np.empty_like(weight), []
    kernels.convolve_backward(dy, pixels, weight, back, dx)
    kernels.weight_gradient(x, patches, dy, back, dw)
    for rows, each, count in ((dy, pixels, len(x)), (x, patches, len(dy))):
        unfolded.append(np.empty((count, each.positions * rows.shape[1]), dtype))
        unfold(rows, each, 0, unfolded[-1])
    matrix = weight.reshape(outputs, -1, 70).swapaxes(0, 1).reshape(-1, 70).copy()
    whole = np.empty_like(dx), np.empty_like(dw)
    blas.matmul(unfolded[0], matrix, whole[0])
    blas.matmul_outer(unfolded[1], dy, whole[1])
    assert np.array_equal(dx, whole[0]) and np.array_equal(dw, whole[1])


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_zeros_times_what_is_not_finite_are_as_numpys(number):
    patches, x, dy, weight = case(HOW[-1], 70, 100, "float32", True)
    dy = mostly_zeros(dy)
    weight[3, 5], x[7, 2] = number, number
    pixels = patches.reversed()
    back = Scratch(kernels.workspace_backward(weight, pixels), "float32")
    with np.errstate(invalid="ignore"):
        assert_same(kernels.convolve_backward, dy, pixels, weight, back, x)
        assert_same(kernels.weight_gradient, x, patches, dy * 0.05, back, weight)
