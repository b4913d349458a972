import math

import numpy as np
import pytest

from dynbatch import optim
from dynbatch.errors import BackendError, NumericError
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.cuda import devices


def parameters_with_gradients(dtype=np.float64, device="cpu"):
    rng = np.random.default_rng(0)
    table, weight, bias, idle = (
        Parameter(np.zeros(shape, dtype), name=name)
        for name, shape in [("table", (9, 4)), ("weight", (300, 40)), ("bias", 40), ("idle", 3)]
    )
    rows = np.array([1, 5, 8])
    table.grad = RowSparse(rows, rng.standard_normal((3, 4)).astype(dtype), (9, 4))
    weight.grad = rng.standard_normal((300, 40)).astype(dtype)
    bias.grad = rng.standard_normal(40).astype(dtype)
    return [parameter.to(device) for parameter in (table, weight, bias, idle)]


def dense(parameter):
    grad = parameter.grad
    return to_host(grad.dense() if isinstance(grad, RowSparse) else grad)


@pytest.mark.parametrize("max_norm", [1.0, 1e4, math.inf, 0.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_norm_and_clipped_gradients_equal_pytorch(max_norm, dtype, tolerance, device):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    ours = parameters_with_gradients(dtype, device)
    theirs = [torch.zeros(p.shape, dtype=torch.tensor(p.numpy()).dtype) for p in ours]
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = None if mine.grad is None else torch.tensor(dense(mine).copy())
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    norm = optim.clip_grad_norm_(ours, max_norm)
    assert isinstance(norm, float) is (device == "cpu")
    assert float(norm) == pytest.approx(float(expected), rel=tolerance)
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        np.testing.assert_allclose(dense(mine), other.grad.numpy(), rtol=tolerance, atol=tolerance)
    assert ours[3].grad is None


def test_values_are_clipped_as_in_pytorch(device):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    ours = parameters_with_gradients(device=device)[:3]
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


# On a GPU -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_norm", "count"), [(math.inf, 2), (1.0, 3)])
def test_launches_and_uploads_of_clipping(cuda, max_norm, count):
    parameters = parameters_with_gradients(device="cuda")
    before = queue().launches, queue().uploads
    optim.clip_grad_norm_(parameters, max_norm)
    assert (queue().launches, queue().uploads) == (before[0] + count, before[1] + 1)
    optim.clip_grad_value_(parameters, 1.0)
    assert queue().launches == before[0] + count + 1


def test_nothing_is_waited_for_until_the_norm_is_read(cuda):
    parameters = parameters_with_gradients(device="cuda")
    optimizer = optim.Adam(parameters)
    with devices.waits() as waits:
        norm = optim.clip_grad_norm_(parameters, 1.0)
        optimizer.step(clear=False)
    assert repr(norm) == "GradientNorm(not read yet)" and not waits
    assert float(norm) > 0


def test_a_norm_is_used_as_a_number(cuda):
    norm = optim.clip_grad_norm_(parameters_with_gradients(device="cuda"), math.inf)
    number = float(norm)
    expected = optim.clip_grad_norm_(parameters_with_gradients(), math.inf)
    assert number == pytest.approx(expected, rel=1e-12)
    assert norm == number and norm > number - 1 and norm <= number and not norm > number
    assert f"{norm:.3f}" == f"{number:.3f}" and repr(norm) == repr(number)


def test_both_dtypes_have_one_norm(cuda):
    singles = parameters_with_gradients(np.float32, "cuda")
    doubles = parameters_with_gradients(np.float64, "cuda")
    before = queue().launches
    norm = float(optim.clip_grad_norm_(singles + doubles, 1.0))
    assert queue().launches == before + 5
    alone = float(optim.clip_grad_norm_(parameters_with_gradients(), math.inf))
    assert norm == pytest.approx(math.sqrt(2) * alone, rel=1e-6)
    assert np.square(dense(singles[1])).sum() == pytest.approx(np.square(dense(doubles[1])).sum())


def test_parameters_of_both_devices_are_refused(cuda):
    here, there = parameters_with_gradients(), parameters_with_gradients(device="cuda")
    for clip in (optim.clip_grad_norm_, optim.clip_grad_value_):
        with pytest.raises(BackendError, match=r"of '\w+' is on cpu, of '[\w.]+' is on cuda"):
            clip(here + there, 1.0)


def spoiled(cuda, dtype=np.float32):
    """Parameters of which two have gradients that are not finite."""
    parameters = parameters_with_gradients(dtype, "cuda")
    for k, number in ((0, math.inf), (2, math.nan)):
        grad = parameters[k].grad
        values = grad.values if isinstance(grad, RowSparse) else grad
        host = values.get()
        host.reshape(-1)[3] = number
        values.set(host)
    return parameters


def test_a_norm_that_is_not_finite_is_told_when_it_is_read(cuda):
    parameters = spoiled(cuda)
    weight = dense(parameters[1])
    norm = optim.clip_grad_norm_(parameters, 1.0)
    with pytest.raises(NumericError, match=r"gradient of 'table', 'bias' is not finite .*inf"):
        float(norm)
    assert np.array_equal(dense(parameters[1]), weight)


@pytest.mark.parametrize("read", [True, False])
def test_an_update_whose_norm_is_not_finite_is_left_out(cuda, read):
    parameters = spoiled(cuda)
    optimizer, reference = optim.Adam(parameters), optim.Adam(parameters_with_gradients(np.float32))
    good = parameters_with_gradients(np.float32, "cuda")
    for ours, theirs in zip(parameters, good, strict=True):
        ours.grad, kept = theirs.grad, ours.grad
        theirs.grad = kept
    for each in (optimizer, reference):
        optim.clip_grad_norm_(each, 1.0)
        each.step()
    expected, before = reference.state_dict(), [p.numpy() for p in parameters]

    for ours, theirs in zip(parameters, good, strict=True):
        ours.grad = theirs.grad
    norm = optim.clip_grad_norm_(optimizer, 1.0)
    optimizer.step()
    if read:
        with pytest.raises(NumericError, match="'table', 'bias'"):
            float(norm)
    else:
        parameters[1].grad = parameters_with_gradients(np.float32, "cuda")[1].grad
        with pytest.raises(NumericError, match="'table', 'bias'"):
            optimizer.step()
        assert parameters[1].grad is not None
    state = optimizer.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-7, err_msg=name)
    assert all(np.array_equal(p.numpy(), b) for p, b in zip(parameters, before, strict=True))


def test_state_is_not_saved_before_the_error_is_told(cuda):
    optimizer = optim.SGD(spoiled(cuda), momentum=0.9)
    optim.clip_grad_norm_(optimizer, 1.0)
    optimizer.step()
    with pytest.raises(NumericError, match="'table', 'bias'"):
        optimizer.state_dict()
    assert optimizer.state_dict().keys() == {"lr"}


def test_gradients_that_were_cleared_are_not_held_to_an_old_norm(cuda):
    parameters = spoiled(cuda)
    optimizer = optim.SGD(parameters, lr=1.0)
    optim.clip_grad_norm_(optimizer, 1.0)
    optimizer.zero_grad()
    parameters[2].grad = parameters_with_gradients(np.float32, "cuda")[2].grad
    optimizer.step()
    optimizer.step()
    assert parameters[2].numpy().any()
