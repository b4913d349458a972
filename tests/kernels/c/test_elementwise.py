"""`kernels.elementwise` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import elementwise as kernels
from dynbatch.kernels.c.elementwise import PRODUCTS
from dynbatch.kernels.c.printed import BACKWARD, FORWARD
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves
from dynbatch.kernels.unary import FUNCTIONS, activations, arithmetic
from tests.kernels.c.compare import assert_same
from tests.kernels.unary.cases import choices

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def kernel_of(name):
    if name.startswith("gelu"):
        return activations.gelu, ("tanh" if name == "gelu_tanh" else "none",)
    return FUNCTIONS[name], choices(FUNCTIONS[name])[0]


def elements(size, dtype, seed=1):
    return (np.random.default_rng(seed).standard_normal(size) * 4).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", BACKWARD, ids=lambda function: function.name)
def test_a_function_and_its_gradient(function, dtype):
    kernel, arguments = kernel_of(function.name)
    for size in (0, 1, 17, 300):
        x, dy = elements(size, dtype), elements(size, dtype, 2)
        if function in FORWARD:
            assert_same(kernels.apply, kernel, x, np.empty_like(x), *arguments)
        saved = np.empty_like(x)
        kernels.apply(kernel, x, saved, *arguments)
        saved = saved if kernel.reads == "output" else x
        assert_same(kernels.apply_backward, kernel, dy, saved, np.empty_like(x), *arguments)
        separate = np.empty_like(x)
        kernels.apply_backward(kernel, dy, saved, separate, *arguments)
        kernels.apply_backward(kernel, dy, saved, dy, *arguments)
        assert dy.tobytes() == separate.tobytes()
        if kernel.reads == "input" and dtype is np.float32:
            rounded, dy, again = round_to(x, SHORT), elements(size, dtype, 2), np.empty_like(x)
            kernels.apply_backward(kernel, dy, rounded, separate, *arguments)
            kernels.apply_backward(kernel, dy, upper_halves(rounded), again, *arguments)
            assert again.tobytes() == separate.tobytes()


@pytest.mark.parametrize("name", ["sigmoid", "gelu", "gelu_tanh", "softplus", "elu"])
def test_threads_and_places_do_not_change_a_bit(name, monkeypatch):
    kernel, arguments = kernel_of(name)
    x, whole = elements(100, np.float32), np.empty(100, np.float32)
    kernels.apply(kernel, x, whole, *arguments)
    for k in range(100):
        alone = np.empty(1, np.float32)
        kernels.apply(kernel, x[k : k + 1], alone, *arguments)
        assert alone[0] == whole[k]
    monkeypatch.setattr(parallel, "shards", lambda count, least=1: [(0, 3), (3, 41), (41, count)])
    kernels.apply(kernel, x, x, *arguments)
    assert x.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_that_are_products(dtype):
    x, dy = elements(100, dtype), elements(100, dtype, 2)
    for exponent in PRODUCTS:
        assert_same(kernels.apply, arithmetic.power, x, np.empty_like(x), exponent)
        assert_same(kernels.apply_backward, arithmetic.power, dy, x, np.empty_like(x), exponent)
