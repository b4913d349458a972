import numpy as np
import pytest

from dynbatch.kernels import grouped
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_blas import TOLERANCE, normal, nothing, values


@pytest.mark.parametrize("groups", [1, 3, 8])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(7, 5, 4), (33, 9, 1), (1, 1, 6)])
def test_groups_are_one_product(cupy, dtype, groups, rows, inner, columns):
    a, x = values(dtype, (rows, groups * inner), (rows, groups * inner))
    b, dy = normal(dtype, groups, inner, columns), normal(dtype, rows, groups * columns)
    with launches(1):
        out = nothing(dtype, rows, groups * columns)
        assert_versions_agree(grouped.matmul_groups, a, Values(b), out, **TOLERANCE)
    with launches(2):
        bias = Values(normal(dtype, groups * columns))
        assert_versions_agree(grouped.matmul_groups, a, Values(b), out, bias, **TOLERANCE)
    for add in (False, True):
        gradient = Values(normal(dtype, groups, columns, inner, seed=int(add)))
        with launches(1):
            assert_versions_agree(
                grouped.outer_groups, x, Values(dy), gradient, add=add, **TOLERANCE
            )


def test_factors_are_transposed_on_request(cupy, dtype):
    a, b = normal(dtype, 5, 12), normal(dtype, 3, 2, 4)
    out = cupy.asarray(np.full((5, 6), np.nan, dtype))
    grouped.matmul_groups(cupy.asarray(a), cupy.asarray(b), out, transpose_b=True)
    queue().flush()
    expected = np.hstack([a[:, 4 * g : 4 * g + 4] @ b[g].T for g in range(3)])
    np.testing.assert_allclose(out.get(), expected, rtol=1e-4, atol=2e-5)
