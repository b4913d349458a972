"""Norms of many gradients at once: repeatable, and nothing scaled where one is not finite."""

import math

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import clipping as kernels
from dynbatch.kernels.cuda import clipping
from dynbatch.kernels.cuda.clipping import CHUNK
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy
from tests.kernels.cuda.compare import launches

SIZES = (1, 0, 31, 32, 33, 1025, CHUNK, 0, CHUNK + 1, 1)
rng = np.random.default_rng(0)


def exercise(kernels):
    """Sums over blocks of several warps."""
    x, entries = fake_cupy.zeros(5000, np.float32), np.array([[0, 0, 5000]], np.int64)
    partials, norm = fake_cupy.zeros(2), fake_cupy.zeros(1)
    kernels.launch("sum_squares", (2,), (64,), (x, fake_cupy.asarray(entries), partials, 1))
    kernels.launch("sums", (2,), (64,), (x, fake_cupy.asarray(entries), partials, 1))
    kernels.launch("norm_of", (1,), (64,), (partials, norm, 2))


def norm_of(cupy, gradients):
    """Both launches; the partial sums and the norm."""
    partials = cupy.empty(sum(map(clipping.num_chunks, gradients)), np.float64)
    norm = cupy.empty(1, np.float64)
    clipping.sum_squares(gradients, partials)
    clipping.norm_of(partials, norm)
    return partials, norm


@pytest.fixture
def gradients(cupy, dtype):
    return [cupy.asarray(rng.standard_normal(size).astype(dtype)) for size in SIZES]


def test_the_norm_of_all_is_two_launches(cupy, dtype, gradients):
    with launches(2):
        partials, norm = norm_of(cupy, gradients)
        queue().flush()
    squares = [kernels.sum_squares(gradient.get()) for gradient in gradients]
    np.testing.assert_allclose(norm.get(), math.sqrt(sum(squares)), rtol=1e-6)
    ends = np.cumsum(list(map(clipping.num_chunks, gradients)))
    found = [part.sum() for part in np.split(partials.get(), ends)[:-1]]
    np.testing.assert_allclose(found, squares, rtol=1e-6)


def test_sums_are_those_of_each_array(cupy, dtype, gradients):
    partials = cupy.empty(sum(map(clipping.num_chunks, gradients)), np.float64)
    with launches(1):
        clipping.sums(gradients, partials)
        queue().flush()
    ends = np.cumsum(list(map(clipping.num_chunks, gradients)))
    found = [part.sum() for part in np.split(partials.get(), ends)[:-1]]
    expected = [gradient.get().sum(dtype=np.float64) for gradient in gradients]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_norm_is_the_same_to_the_bit(cupy, dtype, gradients):
    norms = [norm_of(cupy, gradients)[1] for _ in range(2)]
    queue().flush()
    assert norms[0].get().tobytes() == norms[1].get().tobytes()


def test_squares_of_floats_do_not_overflow(cupy):
    gradients = [cupy.asarray(np.array([3e25, 4e25], np.float32))]
    _, norm = norm_of(cupy, gradients)
    clipping.scale_to_norm(gradients, norm, 1.0)
    queue().flush()
    np.testing.assert_allclose(norm.get(), 5e25, rtol=1e-6)
    np.testing.assert_allclose(gradients[0].get(), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("max_norm", [0.5, 0.0, 1e9])
def test_all_are_scaled_in_one_launch(cupy, dtype, gradients, max_norm):
    before = [gradient.get() for gradient in gradients]
    _, norm = norm_of(cupy, gradients)
    queue().flush()
    with launches(1):
        clipping.scale_to_norm(gradients, norm, max_norm)
        queue().flush()
    factor = min(1.0, max_norm / (float(norm.get()[0]) + 1e-6))
    for gradient, values in zip(gradients, before, strict=True):
        np.testing.assert_allclose(gradient.get(), values * factor, rtol=1e-6)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nothing_is_scaled_where_the_norm_is_not_finite(cupy, dtype, number):
    values = np.ones(CHUNK + 5, dtype)
    values[CHUNK + 2] = number
    gradients = [cupy.asarray(np.ones(40, dtype)), cupy.asarray(values)]
    partials, norm = norm_of(cupy, gradients)
    clipping.scale_to_norm(gradients, norm, 0.1)
    queue().flush()
    assert not np.isfinite(norm.get()).any()
    assert np.isfinite(partials.get()).tolist() == [True, True, False]
    assert gradients[0].get().tolist() == [1] * 40
    np.testing.assert_array_equal(gradients[1].get(), values)


def test_values_are_clipped_in_one_launch(cupy, dtype, gradients):
    values = np.array([np.nan, np.inf, -np.inf, 0.3, -0.3, 0.2, -0.0], dtype)
    gradients.append(cupy.asarray(values))
    before = [gradient.get() for gradient in gradients]
    with launches(1):
        clipping.clip_values(gradients, 0.3)
        queue().flush()
    for gradient, values in zip(gradients, before, strict=True):
        kernels.clip_values([values], 0.3)
        np.testing.assert_array_equal(gradient.get(), values)


def test_arrays_that_are_not_contiguous_are_refused(cupy, dtype):
    with pytest.raises(ShapeError, match="not C-contiguous"):
        clipping.clip_values([cupy.zeros((3, 2), dtype).T], 1.0)
