import numpy as np
import pytest

from dynbatch.kernels import sparsemax
from dynbatch.kernels.matrices import Matrices
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

# A warp shares one column, has several columns, or a matrix of its own width.
SEGMENTS = [
    (np.array([0, 3, 3, 70, 1100]), 1),
    (np.array([0, 3, 3, 70, 110]), 33),
    (np.arange(5) * 7, 2),
    (Matrices([3, 0, 5, 1, 70, 2], [4, 2, 0, 65, 33, 1]), 1),
]


@pytest.mark.parametrize(("segments", "width"), SEGMENTS)
def test_both_ways(cupy, dtype, segments, width):
    matrices = isinstance(segments, Matrices)
    rows = int(segments.rows @ segments.widths) if matrices else segments[-1]
    x, dy = np.random.default_rng(0).standard_normal((2, rows, width)).astype(dtype)
    out = Values(np.zeros_like(x))
    with launches(1):
        *_, y = assert_versions_agree(sparsemax.sparsemax, Values(x), segments, out)
    with launches(1):
        backward = sparsemax.sparsemax_backward
        assert_versions_agree(backward, Values(dy), Values(y), segments, out)


def test_infinities_and_nan(cupy, dtype):
    x = np.array([[1e4], [1e4], [-np.inf], [-np.inf], [0.0], [np.nan], [np.inf], [1]], dtype)
    segments = np.array([0, 3, 4, 6, 8])
    assert_versions_agree(sparsemax.sparsemax, Values(x), segments, Values(x.copy()))
