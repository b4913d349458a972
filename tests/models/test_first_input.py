"""Layers whose input width is None: it is found from data, or from a state."""

import copy
import pickle
import signal

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from dynbatch.models.first_input import UnsizedParameter
from dynbatch.train import load_checkpoint, save_checkpoint

LAYERS = {
    "Linear": lambda width: models.Linear(width, 3, rng=1),
    "Linear without bias": lambda width: models.Linear(width, 3, bias=False, rng=1),
    "LSTM": lambda width: models.LSTM(width, 3, layers=2, bidirectional=True, rng=1),
    "GRU": lambda width: models.GRU(width, 3, rng=1),
    "Conv1d": lambda width: models.Conv1d(width, 4, 3, padding=1, groups=2, rng=1),
    "Conv2d": lambda width: models.Conv2d(width, 4, (1, 2), rng=1),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def run(layer, name, device="cpu", dtype="float32"):
    """Result of the layer, and its gradients."""
    x = np.random.default_rng(0).standard_normal((5, 2, 4) if name == "Conv2d" else (5, 4))
    with db.Graph(device, dtype=dtype) as graph:
        y = layer(F.input(graph, x)).keep()
        graph.backward(F.sum(y * y))
        return y.value, [db.kernels.arrays.download(p.grad) for p in layer.parameters()]


@every_layer
def test_it_is_the_layer_that_is_made_with_its_width(name, device):
    made, unsized = LAYERS[name](4), LAYERS[name](None)
    made.to(device)
    expected, found = [run(layer, name, device) for layer in (made, unsized)]
    for a, b in zip([expected[0], *expected[1]], [found[0], *found[1]], strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(made) == repr(unsized)
    assert {type(p) for p in unsized.parameters()} == {db.Parameter}


@every_layer
def test_what_is_made_before_the_first_input_goes_on_after_it(name):
    """Names, what is frozen, an optimizer and a mean of the weights."""
    layers, means = [LAYERS[name](width) for width in (4, None)], []
    for layer in layers:
        optimizer, average = optim.Adam(layer, lr=0.1), optim.Average(layer, decay=0.5)
        layer.parameters()[-1].frozen = len(layer.parameters()) > 1
        for _ in range(2):
            with db.Graph() as graph:
                shape = (5, 2, 4) if name == "Conv2d" else (5, 4)
                graph.backward(F.sum(layer(F.constant(graph, 1.0, shape))))
            optimizer.step()
            average.update()
        means.append(average.state_dict())
    states = [layer.state_dict() for layer in layers]
    assert list(states[0]) == list(states[1])
    for a, b in zip(*[state.values() for state in states], strict=True):
        np.testing.assert_array_equal(a, b)
    for key, value in means[0].items():
        np.testing.assert_array_equal(value, means[1][key])


@every_layer
def test_a_state_tells_the_width(name):
    made, unsized = LAYERS[name](4), LAYERS[name](None)
    model, other = models.Sequential(made), models.Sequential(unsized)
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(run(made, name)[0], run(unsized, name)[0])


@pytest.mark.parametrize("spoiled", ["second", "dtype"])
def test_a_state_that_is_refused_leaves_the_width_open(spoiled):
    made, model = [
        models.Sequential(models.Linear(width, 3, rng=0), models.Linear(3, 2, rng=1))
        for width in (4, None)
    ]
    state = models.Sequential(models.Linear(7, 3), models.Linear(3, 2)).state_dict()
    if spoiled == "second":
        state["1.weight"] = np.zeros((2, 5))
    else:
        state["1.weight"] = np.array([["a"] * 3] * 2)
    with pytest.raises((CheckpointError, DtypeError)):
        model.load_state_dict(state)
    with db.Graph() as graph:  # and draws what it would have drawn
        x = F.constant(graph, 1.0, (2, 4))
        np.testing.assert_array_equal(model(x).value, made(x).value)


READ = {
    "saved": lambda model, path: save_checkpoint(path, model),
    "counted": lambda model, path: model.num_parameters(),
    "moved": lambda model, path: model.to("cpu"),
    "converted": lambda model, path: model.astype("float64"),
    "read": lambda model, path: model[1].weight.value,
    "copied": lambda model, path: copy.deepcopy(model),
    "pickled": lambda model, path: pickle.dumps(model),
}


@pytest.mark.parametrize("how", READ)
def test_a_parameter_that_has_no_values_is_not(tmp_path, how):
    model = models.Sequential(models.Linear(4, 4), models.Linear(None, 3))
    assert repr(model).endswith(
        "1 Linear: weight of the first input's width, bias of the first input's width"
    )
    with pytest.raises(ShapeError, match=r"weight' has no values yet(.|\n)*call the model"):
        READ[how](model, tmp_path / "model.safetensors")
    with db.Graph() as graph:
        model(F.constant(graph, 1.0, (2, 4)))
    save_checkpoint(tmp_path / "model.safetensors", model)
    load_checkpoint(tmp_path / "model.safetensors", model)


def test_what_does_not_fit_is_refused_and_the_next_input_counts():
    conv = models.Conv1d(None, 4, 3, groups=2)
    with db.Graph() as graph:
        with pytest.raises(ArgumentError, match="groups is 2 for 3 and 4 channels"):
            conv(F.constant(graph, 1.0, (5, 3)))
        assert conv(F.constant(graph, 1.0, (5, 6))).shape == (3, 4)
        with pytest.raises(ShapeError):
            conv(F.constant(graph, 1.0, (5, 4)))


def test_a_block_and_float64_find_the_width_too():
    linear = models.Linear(None, 3, rng=0)

    @db.block
    def twice(x):
        return F.tanh(linear(x))

    with db.Graph(dtype="float64") as graph:
        assert [twice(F.constant(graph, 1.0, (n, 4))).value.shape for n in (3, 0)] == [
            (3, 3),
            (0, 3),
        ]
    assert linear.weight.dtype == np.float64


def test_a_block_of_a_module_finds_the_width_and_a_cell_is_refused():
    class Layer(models.Module):
        def __init__(self):
            self.linear = models.Linear(None, 3, rng=0)

        @db.block
        def __call__(self, x):
            return F.tanh(self.linear(x))

    @db.cell
    def step(x, h, layer):
        h = F.tanh(layer.linear(x) + h)
        return h, h

    layer = Layer()
    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (2, 4))
        with pytest.raises(ShapeError, match=r"does not know(.|\n)*outside the cell"):
            db.scan(step, x, init=3, params=layer)
        assert [layer(x).shape for _ in range(2)] == [(2, 3)] * 2
        assert db.scan(step, x, init=3, params=layer)[0].shape == (2, 3)


def test_an_interrupt_leaves_a_layer_with_all_of_its_parameters(monkeypatch):
    linear, become = models.Linear(None, 3, rng=0), UnsizedParameter.become

    def interrupted(unsized, parameter):
        become(unsized, parameter)
        signal.raise_signal(signal.SIGINT)

    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (2, 4))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(UnsizedParameter, "become", interrupted)
            linear(x)
        np.testing.assert_array_equal(linear(x).value, models.Linear(4, 3, rng=0)(x).value)
