import numpy as np
import pytest

from dynbatch.kernels import layer_norm as kernels

pytestmark = pytest.mark.usefixtures("block")


def normals_of_input(x, mean, rstd):
    return kernels.Normals(x, None if mean is None else mean[:, None], rstd[:, None])


def backward(dy, x, weight, mean, rstd, out):
    normals = normals_of_input(x, mean, rstd)
    kernels.layer_norm_backward(dy, normals, weight, rstd, mean is not None, out)


def parameters(dy, x, mean, rstd, dweight, dbias):
    kernels.layer_norm_parameters(dy, normals_of_input(x, mean, rstd), dweight, dbias)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_equals_the_definition(rows):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 5)) + 3
    weight, bias = generator.standard_normal((2, 5))
    out, mean, rstd = np.empty((rows, 5)), np.empty(rows), np.empty(rows)
    kernels.layer_norm(x, weight, bias, 1e-5, out, mean, rstd)
    normal = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, normal * weight + bias)
    kernels.layer_norm(x, None, None, 1e-5, out, mean, rstd)
    np.testing.assert_allclose(out, normal)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_without_a_mean_only_the_scale_is_taken(rows):
    generator = np.random.default_rng(0)
    x, dy = generator.standard_normal((2, rows, 5)) + 3
    weight, dweight = generator.standard_normal((2, 5))
    out, dx, rstd = np.empty((rows, 5)), np.empty((rows, 5)), np.empty(rows)
    kernels.layer_norm(x, weight, None, 1e-5, out, None, rstd)
    np.testing.assert_allclose(rstd, 1 / np.sqrt((x * x).mean(axis=1) + 1e-5))
    normal, g = x * rstd[:, None], dy * weight
    np.testing.assert_allclose(out, normal * weight)
    backward(dy, x, weight, None, rstd, dx)
    along = (g * normal).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(dx, rstd[:, None] * (g - normal * along))
    parameters(dy, x, None, rstd, dweight, None)
    np.testing.assert_allclose(dweight, (dy * normal).sum(axis=0))


def test_a_row_has_the_same_bits_in_any_batch():
    x = np.random.default_rng(0).standard_normal((50, 257)).astype(np.float32)
    out, again = np.empty_like(x), np.empty_like(x)
    kernels.layer_norm(x, None, None, 1e-5, out, *np.empty((2, 50), np.float32))
    for k in range(50):
        part = slice(k, k + 1)
        kernels.layer_norm(x[part], None, None, 1e-5, again[part], *np.empty((2, 1), np.float32))
    assert out.tobytes() == again.tobytes()


def test_parameter_gradients_are_sums_over_rows():
    dy, x = np.random.default_rng(0).standard_normal((2, 9, 4))
    mean, rstd = np.random.default_rng(1).random((2, 9))
    dweight, dbias = np.empty((2, 4))
    parameters(dy, x, mean, rstd, dweight, None)
    parameters(dy, x, mean, rstd, None, dbias)
    normal = (x - mean[:, None]) * rstd[:, None]
    np.testing.assert_allclose(dweight, (dy * normal).sum(axis=0))
    np.testing.assert_allclose(dbias, dy.sum(axis=0))
    parameters(dy[:0], x[:0], mean[:0], rstd[:0], dweight, dbias)
    assert not dweight.any() and not dbias.any()
