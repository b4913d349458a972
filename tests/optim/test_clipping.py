import math

import numpy as np
import pytest

from dynbatch import optim
from dynbatch.errors import NumericError
from dynbatch.parameter import Parameter, RowSparse


def parameters_with_gradients(dtype=np.float64):
    rng = np.random.default_rng(0)
    table, weight, bias, idle = (
        Parameter(np.zeros(shape, dtype), name=name)
        for name, shape in [("table", (9, 4)), ("weight", (300, 40)), ("bias", 40), ("idle", 3)]
    )
    rows = np.array([1, 5, 8])
    table.grad = RowSparse(rows, rng.standard_normal((3, 4)).astype(dtype), (9, 4))
    weight.grad = rng.standard_normal((300, 40)).astype(dtype)
    bias.grad = rng.standard_normal(40).astype(dtype)
    return [table, weight, bias, idle]


def dense(parameter):
    grad = parameter.grad
    return grad.dense() if isinstance(grad, RowSparse) else grad


@pytest.mark.parametrize("max_norm", [1.0, 1e4, math.inf, 0.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_norm_and_clipped_gradients_equal_pytorch(max_norm, dtype, tolerance):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    ours = parameters_with_gradients(dtype)
    theirs = [torch.zeros(p.shape, dtype=torch.tensor(p.value).dtype) for p in ours]
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = None if mine.grad is None else torch.tensor(dense(mine).copy())
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert optim.clip_grad_norm_(ours, max_norm) == pytest.approx(float(expected), rel=tolerance)
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        np.testing.assert_allclose(dense(mine), other.grad.numpy(), rtol=tolerance, atol=tolerance)
    assert ours[3].grad is None


def test_values_are_clipped_as_in_pytorch():
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    ours = parameters_with_gradients()[:3]
    theirs = [torch.zeros(p.shape, dtype=torch.float64) for p in ours]
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = torch.tensor(dense(mine).copy())
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    optim.clip_grad_value_(ours, 0.3)
    assert all(np.array_equal(dense(m), o.grad.numpy()) for m, o in zip(ours, theirs, strict=True))


def test_norm_of_no_gradients_is_zero():
    assert optim.clip_grad_norm_([Parameter(np.ones(3))], 1.0) == 0.0


def test_frozen_parameters_do_not_count():
    parameters = parameters_with_gradients()
    parameters[1].frozen = True
    before = parameters[1].grad.copy()
    norm = optim.clip_grad_norm_(parameters, 1.0)
    expected = math.sqrt(
        np.square(parameters_with_gradients()[0].grad.values).sum()
        + np.square(parameters_with_gradients()[2].grad).sum()
    )
    assert norm == pytest.approx(expected, rel=1e-12)
    assert np.array_equal(parameters[1].grad, before)


def test_optimizer_stands_for_its_parameters():
    parameters = parameters_with_gradients()
    norm = optim.clip_grad_norm_(parameters, math.inf)
    assert optim.clip_grad_norm_(optim.SGD(parameters), math.inf) == norm


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradient_that_is_not_finite_is_named_and_nothing_scaled(value):
    parameters = parameters_with_gradients(np.float32)
    parameters[0].grad.values[1, 2] = value
    weight = parameters[1].grad.copy()
    with pytest.raises(NumericError, match="'table' is not finite"):
        optim.clip_grad_norm_(parameters, 1.0)
    assert np.array_equal(parameters[1].grad, weight)


def test_float32_squares_that_overflow_still_give_the_norm():
    parameter = Parameter(np.zeros(2, np.float32))
    parameter.grad = np.array([3e25, 4e25], np.float32)
    assert optim.clip_grad_norm_([parameter], 1.0) == pytest.approx(5e25, rel=1e-6)
    np.testing.assert_allclose(parameter.grad, [0.6, 0.8], rtol=1e-6)


def test_limits_below_zero_are_refused():
    for clip in (optim.clip_grad_norm_, optim.clip_grad_value_):
        for limit in (-1.0, math.nan):
            with pytest.raises(ValueError, match=">= 0"):
                clip([Parameter(np.ones(1))], limit)
