import numpy as np
import pytest

from dynbatch.kernels import positions as kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.positions import Angles
from tests.kernels.cuda.compare import assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

# Runs: none, of no rows, of one length, of many, of more rows than a block does.
OFFSETS = [[0], [0, 0], [0, 3, 6], [0, 2, 2, 3, 40, 41], [0, 500]]
RUNS = pytest.mark.parametrize("offsets", OFFSETS, ids=len)
LAYOUT = pytest.mark.parametrize("is_interleaved", [True, False])


def runs(offsets):
    return np.array(offsets), np.arange(len(offsets) - 1) * 7 % 30


@RUNS
@LAYOUT
@pytest.mark.parametrize(("heads", "features", "rotated"), [(1, 2, 2), (3, 8, 8), (2, 11, 4)])
def test_rotary(cupy, dtype, offsets, is_interleaved, heads, features, rotated):
    angles = Angles(rotated, 100.0)
    for is_inverse in (False, True):
        x = normal(dtype, offsets[-1], heads * features)
        out = normal(dtype, offsets[-1], heads * features, seed=1)
        with launches(bool(offsets[-1])):
            assert_versions_agree(
                kernels.rotary, x, *runs(offsets), angles, heads, is_interleaved, is_inverse, out
            )


@LAYOUT
def test_rotary_in_place(cupy, dtype, is_interleaved):
    x = normal(dtype, 41, 22).array
    on_device, out = cupy.asarray(x), np.empty_like(x)
    arguments = *runs(OFFSETS[3]), Angles(4, 100.0), 2, is_interleaved, False
    kernels.rotary(on_device, *arguments, on_device)
    queue().flush()
    kernels.rotary(x, *arguments, out)
    np.testing.assert_allclose(on_device.get(), out, rtol=1e-5, atol=1e-6)


@RUNS
@LAYOUT
@pytest.mark.parametrize("width", [1, 4, 33])
def test_sinusoidal(cupy, dtype, offsets, is_interleaved, width):
    out = normal(dtype, offsets[-1], width)
    with launches(bool(offsets[-1])):
        assert_versions_agree(
            kernels.sinusoidal, *runs(offsets), Angles(width, 100.0), is_interleaved, out
        )


def test_the_table_of_angles_is_brought_up_once_a_flush(cupy, dtype):
    angles = Angles(8, 100.0)
    x = cupy.asarray(normal(dtype, 41, 8).array)
    copied = []
    for times in (1, 5):
        before = queue().uploaded_bytes
        offsets, starts = runs(OFFSETS[3])
        for _ in range(times):
            kernels.rotary(x, offsets, starts, angles, 1, False, False, x)
        queue().flush()
        copied.append(queue().uploaded_bytes - before)
    assert copied[0] == copied[1] >= angles.table(41, dtype).nbytes
