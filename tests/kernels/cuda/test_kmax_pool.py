import numpy as np
import pytest

from dynbatch.kernels import kmax_pool
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches


@pytest.mark.parametrize("offsets", [[0], [0, 3, 12, 15, 17], [0, 4, 8]])
@pytest.mark.parametrize(("k", "width"), [(1, 1), (2, 3), (3, 40)])
def test_both_ways(cupy, dtype, offsets, k, width):
    offsets = np.array(offsets)
    if k > 2 and offsets[-1] == 17:
        offsets = offsets[:-1]
    x = np.random.default_rng(0).integers(-2, 3, (offsets[-1], width)).astype(dtype)
    x[5:6], x[6:7, 0] = -np.inf, np.nan
    y = np.zeros((k * (offsets.size - 1), width), dtype)
    place = np.zeros(y.shape, f"i{y.itemsize}")
    with launches(offsets.size > 1):
        *_, place = assert_versions_agree(
            kmax_pool.kmax_pool, Values(x), offsets, k, Values(y), Values(place)
        )
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(dtype)
    with launches(offsets.size > 1):
        backward = kmax_pool.kmax_pool_backward
        assert_versions_agree(backward, Values(dy), offsets, k, Values(place), Values(x))
