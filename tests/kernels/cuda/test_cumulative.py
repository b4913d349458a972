import numpy as np
import pytest

from dynbatch.kernels import cumulative
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.matrices import Matrices
from tests.kernels.cuda.compare import assert_versions_agree, launches
from tests.kernels.cuda.test_segment import SEGMENT, normal


@SEGMENT
@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("backwards", [False, True])
def test_running_sums(cupy, dtype, offsets, width, backwards):
    x, out = normal(dtype, offsets[-1], width), normal(dtype, offsets[-1], width)
    with launches(len(offsets) > 1):
        assert_versions_agree(
            cumulative.cumsum_segments, x, offsets, backwards, out, rtol=1e-4, atol=2e-5
        )


@pytest.mark.parametrize("backwards", [False, True])
def test_running_sums_of_matrices_take_one_launch(cupy, dtype, backwards):
    matrices = Matrices([3, 0, 5, 1, 70, 2], [4, 2, 0, 65, 33, 1])
    elements = int(matrices.rows @ matrices.widths)
    x, out = normal(dtype, elements, 1), normal(dtype, elements, 1)
    with launches(1):
        assert_versions_agree(
            cumulative.cumsum_segments, x, matrices, backwards, out, rtol=1e-4, atol=2e-5
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
