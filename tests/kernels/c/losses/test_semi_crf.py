"""Gradients of the semi-Markov CRF in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.losses import semi_crf as kernels
from tests.kernels.c.compare import TOLERANCE
from tests.kernels.table.call import normal
from tests.kernels.table.losses import SEMI_CRF, SemiCrf


def gradients(problem):
    call = problem.forward()
    x, chain, ids, offsets, *left = call.on_host()
    kernels.semi_crf(x, chain, ids, offsets, *left)
    dx, wanted = np.empty_like(x), chain._make([np.empty_like(part) for part in chain])
    dy = normal(x.dtype, len(offsets) - 1, seed=1)
    scratch = np.empty(kernels.workspace_backward(*problem.rows.shape), x.dtype)
    arguments = (x, chain, ids, offsets, *left[:3], dy, scratch, dx, wanted)
    kernels.semi_crf_backward(*arguments)
    return [left[3], dx, *wanted]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SEMI_CRF)
def test_gradients(name, dtype):
    problem = SemiCrf(dtype, SEMI_CRF[name], forbids=True)
    mine = gradients(problem)
    with library.reference_only():
        expected = gradients(problem)
    tolerance = 5 * TOLERANCE[np.dtype(dtype).char]
    for a, b in zip(mine, expected, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)
