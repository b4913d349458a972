"""Products of groups of columns, against `einsum`."""

import numpy as np
import pytest

from dynbatch.kernels import grouped


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(70, 5, 2), (9, 9, 1), (0, 3, 4)])
def test_each_group_has_its_own_factor(groups, rows, inner, columns):
    generator = np.random.default_rng(0)
    a, dy = [generator.normal(size=(rows, groups, n)) for n in (inner, columns)]
    b, bias = generator.normal(size=(groups, inner, columns)), generator.normal(size=columns)
    flat, flat_dy = a.reshape(rows, groups * inner), dy.reshape(rows, groups * columns)
    expected, out = np.einsum("mgk,gkn->mgn", a, b), np.full(flat_dy.shape, np.nan)
    grouped.matmul_groups(flat, b, out)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, atol=1e-12)
    grouped.matmul_groups(
        flat, np.ascontiguousarray(b.swapaxes(1, 2)), out, np.tile(bias, groups), transpose_b=True
    )
    np.testing.assert_allclose(out.reshape(expected.shape), expected + bias, atol=1e-12)
    products, gradient = np.einsum("mgn,mgk->gnk", dy, a), np.full((groups, columns, inner), np.nan)
    grouped.outer_groups(flat, flat_dy, gradient)
    np.testing.assert_allclose(gradient, products, atol=1e-12)
    grouped.outer_groups(flat, flat_dy, gradient, add=True)
    np.testing.assert_allclose(gradient, 2 * products, atol=1e-12)
