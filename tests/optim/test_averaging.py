import numpy as np
import pytest

from dynbatch import backend, optim
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse


class Model(Module):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.table = Parameter(rng.standard_normal((9, 4)).astype(np.float32))
        self.bias = Parameter(rng.standard_normal(4).astype(np.float32))


def step(model, optimizer, rng):
    """An update of a few rows of the table, and of the bias."""
    rows = np.sort(rng.choice(9, 2, replace=False))
    values = rng.standard_normal((2, 4)).astype(np.float32)
    model.table.grad = RowSparse(rows, values, (9, 4)).to(model.table.device)
    bias = rng.standard_normal(4).astype(np.float32)
    model.bias.grad = to_device(bias, model.bias.device)
    optimizer.step()


def values_of(model):
    return {name: parameter.numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("decay", [None, 0.9])
def test_the_mean_equals_that_of_pytorch(decay, device):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    swa = torch.optim.swa_utils
    model = Model().to(device)
    theirs = torch.nn.ParameterDict({n: torch.tensor(v) for n, v in values_of(model).items()})
    rule = swa.get_swa_multi_avg_fn() if decay is None else swa.get_ema_multi_avg_fn(decay)
    reference = swa.AveragedModel(theirs, multi_avg_fn=rule)
    average, optimizer = optim.Average(model, decay), optim.Adam(model, lr=0.1)
    rng = np.random.default_rng(1)
    for _ in range(20):
        step(model, optimizer, rng)
        for name, value in values_of(model).items():
            theirs[name].data = torch.tensor(value)
        average.update()
        reference.update_parameters(theirs)
    expected = {name: p.detach().numpy() for name, p in reference.module.items()}
    for name, value in average.state_dict().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)


def test_the_mean_takes_the_place_of_the_weights_and_gives_it_back(device):
    model = Model().to(device)
    optimizer, average = optim.SGD(model, lr=0.1), optim.Average(model, decay=0.5)
    before = values_of(model)
    with average.applied():
        assert all(np.array_equal(before[n], v) for n, v in values_of(model).items())
    rng = np.random.default_rng(0)
    for _ in range(3):
        step(model, optimizer, rng)
        average.update()
    weights, mean = values_of(model), average.state_dict()
    with pytest.raises(ZeroDivisionError), average.applied(), average.applied():
        inside = values_of(model)
        assert all(np.array_equal(mean[name], value) for name, value in inside.items())
        assert all(np.array_equal(mean[n], v) for n, v in average.state_dict().items())
        _ = 1 / 0
    assert all(np.array_equal(weights[name], v) for name, v in values_of(model).items())
    assert not np.array_equal(mean["table"], weights["table"])
    assert model.table.device == backend.device(device)


def test_updates_before_the_start_are_left_out():
    model = Model()
    average = optim.Average(model, start=2)
    for number in range(5):
        model.bias.assign(np.full(4, number, np.float32))
        average.update()
    assert average.num_averaged == 3
    np.testing.assert_allclose(average.state_dict()["bias"], [3.0] * 4)


def test_a_loaded_mean_goes_on_to_the_same_bits():
    model, rng = Model(), np.random.default_rng(3)
    optimizer, average = optim.SGD(model, lr=0.1), optim.Average(model)
    for _ in range(3):
        step(model, optimizer, rng)
        average.update()
    other = optim.Average(model)
    other.load_state_dict(average.state_dict(), average.num_updates)
    step(model, optimizer, rng)
    average.update()
    other.update()
    ours, theirs = average.state_dict(), other.state_dict()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    fresh = optim.Average(model)
    with pytest.raises(CheckpointError, match="missing: \\['table'\\]"):
        fresh.load_state_dict({"bias": ours["bias"]}, 3)
    assert fresh.num_updates == 0 and fresh.state_dict() == {}


def test_a_mean_follows_a_model_that_moves(cuda):
    model = Model()
    average = optim.Average(model, decay=0.5)
    average.update()
    model.to("cuda")
    model.bias.assign(np.zeros(4, np.float32))
    average.update()
    np.testing.assert_allclose(average.state_dict()["bias"], Model().bias.value / 2, rtol=1e-6)
    model.to("cpu")
    with average.applied():
        np.testing.assert_allclose(model.bias.value, Model().bias.value / 2, rtol=1e-6)


def test_settings_out_of_range_are_refused_by_name():
    for settings, says in [
        (dict(decay=1.0), "decay is 1.0"),
        (dict(start=-1), "start is -1"),
    ]:
        with pytest.raises(ValueError, match=says):
            optim.Average(Model(), **settings)
