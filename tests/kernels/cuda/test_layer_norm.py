import numpy as np
import pytest

from dynbatch.kernels import layer_norm as kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal
from tests.kernels.test_layer_norm import backward, parameters

EPS = 1e-5
# A warp does rows of up to 1024, a block longer ones.
SHAPES = [(0, 5), (1, 1), (9, 31), (33, 32), (8, 33), (3, 1024), (3, 1025)]
SHAPE = pytest.mark.parametrize(("rows", "width"), SHAPES)


def statistics(x, centred=True):
    out, mean, rstd = np.empty_like(x), *np.empty((2, len(x)), x.dtype)
    mean = mean if centred else None
    kernels.layer_norm(x, None, None, EPS, out, mean, rstd)
    return mean, rstd


def on_device(cupy, *arrays):
    return [None if array is None else cupy.asarray(array) for array in arrays]


@SHAPE
@pytest.mark.parametrize("given", ["both", "weight", "bias", "neither"])
def test_forward(cupy, dtype, rows, width, given):
    x = normal(dtype, rows, width)
    x.array[...] += 30  # the variance is not the difference of two squares
    weight = normal(dtype, width, seed=1) if given in ("both", "weight") else None
    bias = normal(dtype, width, seed=2) if given in ("both", "bias") else None
    out, mean, rstd = normal(dtype, rows, width), normal(dtype, rows), normal(dtype, rows)
    with launches(bool(rows)):
        assert_versions_agree(
            kernels.layer_norm, x, weight, bias, EPS, out, mean, rstd, rtol=1e-4, atol=5e-5
        )


@SHAPE
@pytest.mark.parametrize("weighted", [True, False])
def test_forward_without_a_mean_and_with_a_copy(cupy, dtype, rows, width, weighted):
    weight = normal(dtype, width, seed=1) if weighted else None
    x, out, rstd = normal(dtype, rows, width), normal(dtype, rows, width), normal(dtype, rows)
    kept = normal(dtype, rows, width, seed=3) if weighted else None
    with launches(bool(rows)):
        assert_versions_agree(
            kernels.layer_norm, x, weight, None, EPS, out, None, rstd, kept, rtol=1e-4, atol=5e-5
        )


@SHAPE
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_backward(cupy, dtype, rows, width, weighted, centred):
    x, dy, out = [normal(dtype, rows, width, seed=seed).array for seed in range(3)]
    weight = normal(dtype, width, seed=3).array if weighted else None
    mean, rstd = statistics(x, centred)
    device = on_device(cupy, dy, x, weight, mean, rstd, out)
    with launches(bool(rows)):
        backward(*device)
        queue().flush()
    backward(dy, x, weight, mean, rstd, out)
    # In a row of one element the terms cancel to rounding errors, times an rstd of 316.
    tolerance = (2e-3 if width == 1 else 2e-5) * (1 if dtype == np.float32 else 1e-9)
    np.testing.assert_allclose(device[-1].get(), out, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "width"), [*SHAPES, (65, 3), (256, 33), (257, 33), (600, 1)])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("wanted", ["both", "dweight", "dbias"])
def test_parameters(cupy, dtype, rows, width, wanted, centred):
    x, dy = [normal(dtype, rows, width, seed=seed).array for seed in range(2)]
    mean, rstd = statistics(x, centred)
    expected = [
        np.empty(width, dtype) if wanted in ("both", n) else None for n in ("dweight", "dbias")
    ]
    found = [None if array is None else cupy.empty(width, dtype) for array in expected]
    with launches(1 + (rows > 256)):
        parameters(*on_device(cupy, dy, x, mean, rstd), *found)
        queue().flush()
    parameters(dy, x, mean, rstd, *expected)
    tolerance = 5e-5 if dtype == np.float32 else 1e-13
    for array, wanted_array in zip(found, expected, strict=True):
        if array is not None:
            np.testing.assert_allclose(array.get(), wanted_array, rtol=tolerance, atol=tolerance)


def test_a_nan_stays_in_its_row(cupy, dtype):
    x = normal(dtype, 9, 33)
    x.array[4, 7], x.array[6, 1] = np.nan, np.inf
    out, mean, rstd = normal(dtype, 9, 33), normal(dtype, 9), normal(dtype, 9)
    *_, y, _, _ = assert_versions_agree(
        kernels.layer_norm, x, None, None, EPS, out, mean, rstd, rtol=1e-4, atol=5e-5
    )
    assert np.isnan(y).any(axis=1).tolist() == [row in (4, 6) for row in range(9)]


def test_bits_do_not_depend_on_the_other_rows(cupy, dtype):
    for width in (33, 1025):
        x = Values(normal(dtype, 20, width).array)
        results = []
        for part in (slice(0, 20), slice(7, 8)):
            device = [cupy.asarray(x.array[part]), cupy.empty(x.array[part].shape, dtype)]
            rows = len(device[0])
            mean, rstd = cupy.empty(rows, dtype), cupy.empty(rows, dtype)
            kernels.layer_norm(device[0], None, None, EPS, device[1], mean, rstd)
            queue().flush()
            results.append(device[1].get())
        assert results[0][7:8].tobytes() == results[1].tobytes()
