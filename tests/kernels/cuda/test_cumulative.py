import numpy as np
import pytest

from dynbatch.kernels import cumulative
from dynbatch.kernels.cuda.queue import queue
from tests.kernels.cuda.compare import assert_equal_twins, launches
from tests.kernels.cuda.test_segment import SEGMENT, normal


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("backwards", [False, True])
def test_running_sums(cupy, dtype, offsets, width, backwards):
    x, out = normal(dtype, offsets[-1], width), normal(dtype, offsets[-1], width)
    with launches(len(offsets) > 1):
        assert_equal_twins(
            cumulative.cumsum_segments, x, offsets, backwards, out, rtol=1e-4, atol=2e-5
        )


@pytest.mark.parametrize("width", [1, 33])
@pytest.mark.parametrize("backwards", [False, True])
def test_in_place(cupy, width, backwards):
    offsets = np.array([0, 70, 70, 101])
    x = normal(np.float64, offsets[-1], width).array
    expected = np.empty_like(x)
    cumulative.cumsum_segments(x, offsets, backwards, expected)
    on_device = queue().cupy.asarray(x)
    cumulative.cumsum_segments(on_device, offsets, backwards, on_device)
    queue().flush()
    np.testing.assert_allclose(on_device.get(), expected, atol=1e-12)
