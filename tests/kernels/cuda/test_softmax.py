from itertools import pairwise

import numpy as np
import pytest

from dynbatch.kernels import softmax as reference
from dynbatch.kernels.cuda import softmax
from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.cuda.softmax import Segments

TOLERANCE = {"float32": 2e-6, "float64": 1e-14}
# Short and long segments in both layouts: a warp does up to 1024 rows of one column, or 64 of many.
LENGTHS = (0, 1, 31, 32, 33, 0, 1024, 1025, 2, 65, 3000, 0)
OFFSETS = np.concatenate(([0], np.cumsum(LENGTHS))).astype(np.int32)
FORWARD = ("softmax", "log_softmax")


@pytest.fixture(params=[np.float32, np.float64])
def kernels(request, cupy):
    return Kernels(request.param, cupy)


def normal(kernels, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kernels.dtype)


def run(kernels, name, matrices, segments, width):
    device = [kernels.cupy.asarray(matrix) for matrix in matrices]
    out = kernels.cupy.empty(matrices[0].shape, kernels.dtype)
    getattr(softmax, name)(kernels, *device, segments, out, width)
    return out.get()


def expected(name, matrices, offsets):
    out = np.empty_like(matrices[0])
    with np.errstate(invalid="ignore"):
        getattr(reference, name)(*matrices, offsets, out)
    return out


@pytest.mark.parametrize("width", [1, 2, 33])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_and_backward_equal_the_reference(kernels, name, width):
    segments = Segments(len(LENGTHS), kernels.cupy.asarray(OFFSETS))
    x, dy = 5 * normal(kernels, OFFSETS[-1], width), normal(kernels, OFFSETS[-1], width, seed=1)
    tolerance = TOLERANCE[kernels.dtype.name]
    y = expected(name, (x,), OFFSETS)
    np.testing.assert_allclose(
        run(kernels, name, (x,), segments, width), y, rtol=100 * tolerance, atol=tolerance
    )
    # Gradients are held against sums of float64 of the same inputs: sums of thousands of terms.
    wide = [array.astype(np.float64) for array in (dy, y)]
    dx = expected(f"{name}_backward", wide, OFFSETS)
    np.testing.assert_allclose(
        run(kernels, f"{name}_backward", (dy, y), segments, width),
        dx,
        rtol=100 * tolerance,
        atol=20 * tolerance,
    )


@pytest.mark.parametrize(("count", "length"), [(0, 5), (3, 0), (1, 1), (70, 33), (2, 1025)])
@pytest.mark.parametrize("name", FORWARD)
def test_segments_of_one_length_need_no_offsets(kernels, name, count, length):
    x = normal(kernels, count * length, 1)
    offsets = np.arange(count + 1) * length
    np.testing.assert_allclose(
        run(kernels, name, (x,), Segments(count, None, length), 1),
        expected(name, (x,), offsets),
        rtol=1e-4,
        atol=TOLERANCE[kernels.dtype.name],
    )
    assert sum(kernels.launches.values()) == bool(count)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", FORWARD)
def test_infinities_and_nan_give_what_the_reference_gives(kernels, name, width):
    x = normal(kernels, OFFSETS[-1], width)
    x[OFFSETS[2] : OFFSETS[3]] = -np.inf  # a whole segment: NaN
    x[OFFSETS[3]] = -np.inf  # the first element only: probability 0
    x[OFFSETS[4] + 3] = np.inf  # NaN
    x[OFFSETS[6] + 700, 0] = np.nan
    x[OFFSETS[7] + 5 :: 7] = -np.inf
    x[OFFSETS[8], 0] = np.nan  # the first element that a thread sees
    x[OFFSETS[10] : OFFSETS[10] + 300] = -np.inf  # all that some threads of a long segment see
    segments = Segments(len(LENGTHS), kernels.cupy.asarray(OFFSETS))
    np.testing.assert_allclose(
        run(kernels, name, (x,), segments, width),
        expected(name, (x,), OFFSETS),
        rtol=1e-3,
        atol=TOLERANCE[kernels.dtype.name],
    )


def test_large_values_do_not_overflow(kernels):
    x = np.array([[1e4], [1e4 + 1], [-1e4]], kernels.dtype)
    y = run(kernels, "softmax", (x,), Segments(1, None, 3), 1)
    np.testing.assert_allclose(y[:, 0], [1 / (1 + np.e), np.e / (1 + np.e), 0], rtol=1e-5)


@pytest.mark.parametrize("width", [1, 40])
def test_the_output_may_be_the_input(kernels, width):
    x = normal(kernels, OFFSETS[-1], width)
    segments = Segments(len(LENGTHS), kernels.cupy.asarray(OFFSETS))
    apart = run(kernels, "softmax", (x,), segments, width)
    in_place = kernels.cupy.asarray(x)
    softmax.softmax(kernels, in_place, segments, in_place, width)
    assert in_place.get().tobytes() == apart.tobytes()


@pytest.mark.parametrize("width", [1, 40])
def test_bits_do_not_depend_on_the_other_segments(kernels, width):
    x = normal(kernels, OFFSETS[-1], width)
    segments = Segments(len(LENGTHS), kernels.cupy.asarray(OFFSETS))
    together = run(kernels, "softmax", (x,), segments, width)
    for start, end in pairwise(OFFSETS):
        alone = run(kernels, "softmax", (x[start:end],), Segments(1, None, int(end - start)), width)
        assert alone.tobytes() == together[start:end].tobytes()
