"""`kernels.layer_norm` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels import layer_norm as kernels
from dynbatch.kernels.runtime.dispatch import c_version
from tests.kernels.c.compare import assert_same

EPS = 1e-3
ROWS = [0, 1, 7]
WIDTHS = [1, 5, 16, 37, 256]


def normal(dtype: type, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def made(dtype: type, rows: int, width: int) -> tuple[kernels.Normals, Array, Array]:
    """Normals of an output, with the weight and rstd."""
    x = normal(dtype, rows, width)
    weight, bias = normal(dtype, 2, width, seed=1)
    weight[::3], weight[1::3] = np.abs(weight[::3]) + 0.5, 0
    out, mean, rstd = np.empty_like(x), *np.empty((2, rows), dtype)
    kernels.layer_norm(x, weight, bias, EPS, out, mean, rstd)
    of_input = kernels.Normals(x, mean[:, None], rstd[:, None])
    lost = kernels.lost_columns(weight, bias, width)
    values = of_input.part(slice(None)).take(lost, axis=1)
    of_output = kernels.normals_of_output(out, weight, bias, (lost, values))
    return of_output, weight, rstd


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_backward_of_an_output(dtype: type, rows: int, width: int) -> None:
    normals, weight, rstd = made(dtype, rows, width)
    dy, out = normal(dtype, rows, width, seed=2), np.empty((rows, width), dtype)
    for centred in (True, False):
        assert_same(kernels.layer_norm_backward, dy, normals, weight, rstd, centred, out)
        kernels.layer_norm_backward(dy, normals, weight, rstd, centred, out)
        over = dy.copy()
        kernels.layer_norm_backward(over, normals, weight, rstd, centred, over)
        assert over.tobytes() == out.tobytes()
    sums = np.empty((2, width), dtype)
    assert_same(kernels.layer_norm_parameters, dy, normals, *sums)
    assert_same(kernels.layer_norm_parameters, dy, normals, None, sums[1])
    assert_same(kernels.layer_norm_parameters, dy, normals, sums[0], None)


def test_normals_of_an_output_without_weight_and_bias_are_the_output() -> None:
    y, dy = normal(np.float32, 3, 20), normal(np.float32, 3, 20, seed=1)
    normals = kernels.normals_of_output(y, None, None, None)
    rstd, out = np.ones(3, np.float32), np.empty_like(y)
    assert_same(kernels.layer_norm_backward, dy, normals, None, rstd, True, out)


def test_a_row_has_the_same_bits_alone_and_in_company() -> None:
    x, dy = normal(np.float32, 2, 50, 37)
    weight, bias = normal(np.float32, 2, 37, seed=3)
    every = forward_and_backward(x, dy, weight, bias)
    for k in range(50):
        row = slice(k, k + 1)
        alone = forward_and_backward(x[row], dy[row], weight, bias)
        assert [a.tobytes() for a in alone] == [e[row].tobytes() for e in every]


def forward_and_backward(x: Array, dy: Array, weight: Array, bias: Array) -> list[Array]:
    out, dx, mean, rstd = np.empty_like(x), np.empty_like(x), *np.empty((2, len(x)), x.dtype)
    kernels.layer_norm(x, weight, bias, EPS, out, mean, rstd)
    normals = kernels.normals_of_output(out, weight, bias, None)
    kernels.layer_norm_backward(dy, normals, weight, rstd, True, dx)
    return [out, dx, mean, rstd]


def test_other_arrays_are_numpys() -> None:
    x, rstd = normal(np.float32, 4, 6), np.empty(4, np.float32)
    columns, out = x.T, np.empty((6, 4), np.float32)
    run = c_version(kernels.layer_norm)
    assert run(columns, None, None, EPS, out, None, rstd) is NotImplemented
    assert run(x, None, None, EPS, np.empty((4, 6)), None, rstd) is NotImplemented
