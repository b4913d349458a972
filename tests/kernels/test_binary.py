import numpy as np
import pytest

from dynbatch.kernels import binary
from tests.kernels.columns import columns

BINARY = [*binary.FUNCTIONS.values()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", BINARY, ids=lambda kernel: kernel.name)
def test_columns_of_rows_of_any_width(kernel, dtype):
    for a, b, dy in zip(*[columns(dtype, k) for k in range(3)], strict=True):
        plain_a, plain_b, plain_dy = a.copy(), b.copy(), dy.copy()
        expected = np.empty_like(plain_a)
        kernel.forward(plain_a, plain_b, expected)
        kernel.forward(a, b, a)
        np.testing.assert_allclose(a, expected, rtol=1e-6)
        a[...] = plain_a
        for differentiate in kernel.backward:
            differentiate(plain_dy, plain_a, plain_b, expected)
            out = np.empty((7, 16), dtype)[:, : a.shape[1]]
            if kernel.inplace:
                out = dy.base[:, -a.shape[1] :]
                out[...] = plain_dy
            differentiate(out if kernel.inplace else dy, a, b, out)
            np.testing.assert_allclose(out, expected, rtol=1e-6)
