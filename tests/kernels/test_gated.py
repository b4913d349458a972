import numpy as np
import pytest

from dynbatch.kernels import gated as kernels
from dynbatch.kernels.unary import activations
from tests.kernels.gates import of_each_function

pytestmark = pytest.mark.usefixtures("block")


def arrays(rows=9, width=3):
    return np.random.default_rng(0).standard_normal((3, rows, width))


@of_each_function
def test_halves_are_the_two_arrays(function):
    gate, value, dy = arrays()
    out, dgate, dvalue, halves = np.empty((4, *gate.shape))
    kernels.gated(*function, (gate, value), False, out)
    kernels.gated_backward(*function, dy, (gate, value), False, (dgate, dvalue))
    for value_first in (False, True):
        order = slice(None, None, -1 if value_first else 1)
        x, dx = np.hstack((gate, value)[order]), np.empty((9, 6))
        kernels.gated(*function, (x,), value_first, halves)
        assert np.array_equal(halves, out)
        kernels.gated_backward(*function, dy, (x,), value_first, (dx,))
        assert np.array_equal(dx, np.hstack((dgate, dvalue)[order]))


@of_each_function
def test_the_gradient_is_the_functions_own(function):
    kernel, arguments = function
    gate, value, dy = arrays()
    y, dgate, dvalue = np.empty_like(gate), np.empty_like(gate), np.empty_like(gate)
    kernel.forward(gate, y, *arguments)
    saved = y if kernel.reads == "output" else gate
    kernel.backward(dy * value, saved, dgate, *arguments)
    alone, found = np.empty((2, *gate.shape))
    for dxs in ((found, dvalue), (found, None)):
        kernels.gated_backward(*function, dy, (gate, value), False, dxs)
        np.testing.assert_allclose(found, dgate, rtol=1e-12)
    kernels.gated_backward(*function, dy, (gate, value), False, (None, alone))
    assert np.array_equal(alone, dvalue)
    np.testing.assert_allclose(dvalue, dy * y, rtol=1e-14)


@of_each_function
@pytest.mark.parametrize("step", [1, 2])  # arrays with gaps are NumPy's
def test_a_gradient_that_nobody_wants_is_not_computed(function, step):
    gate, value, dy = arrays(width=6)[..., ::step]
    for dgate, dvalue in [(None, None), (np.empty_like(gate), None), (None, np.empty_like(gate))]:
        both = np.empty((2, *gate.shape))
        kernels.gated_backward(*function, dy, (gate, value), False, tuple(both))
        kernels.gated_backward(*function, dy, (gate, value), False, (dgate, dvalue))
        for one, expected in zip((dgate, dvalue), both, strict=True):
            assert one is None or np.array_equal(one, expected)


def test_no_rows():
    for xs, out in (
        ((np.empty((0, 4)),), np.empty((0, 2))),
        ((np.empty(0), np.empty(0)), np.empty(0)),
    ):
        kernels.gated(activations.silu, (), xs, False, out)
        kernels.gated_backward(activations.silu, (), out, xs, False, xs)


def test_units_of_ever_other_numbers_do_not_pile_up():
    for k in range(200):
        unit = kernels.unit(activations.leaky_relu, (k / 200,))
    assert kernels.unit(activations.leaky_relu, (199 / 200,)) is unit
    assert kernels.unit.cache_info().currsize < 100
    assert kernels._gradients.cache_info().maxsize < 100
