"""`Module`: which parameters are found, what they are called, how a model is printed."""

from typing import NamedTuple

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError, DtypeError
from dynbatch.padding.measured_models import recomputing
from dynbatch.train.checkpoint import load_checkpoint, save_checkpoint


def vector(size=2):
    return db.Parameter(np.zeros(size, np.float32))


class Mixed(models.Module):
    def __init__(self):
        self.scale = vector()
        self.gates = [vector(3), vector(4)]
        self.heads = {"tags": models.Linear(2, 5), "scale": vector(6)}
        self.again = self.scale


def test_parameters_in_lists_and_dictionaries_are_found():
    shapes = {name: parameter.shape for name, parameter in Mixed().named_parameters()}
    assert shapes == {
        "scale": (2,),
        "gates.0": (3,),
        "gates.1": (4,),
        "heads.scale": (6,),
        "heads.tags.weight": (5, 2),
        "heads.tags.bias": (5,),
    }
    one, other = Mixed(), Mixed()
    one.gates[1].value += 7
    other.load_state_dict(one.state_dict())
    assert other.gates[1].value.tolist() == [7] * 4


def test_an_attribute_names_a_parameter_that_has_no_name_yet():
    own = db.Parameter(np.zeros(2, np.float32), "mine")
    linear = models.Linear(2, 2)
    linear.extra = own
    assert (linear.weight.name, linear.bias.name, own.name) == ("weight", "bias", "mine")


def test_a_model_prints_as_its_tree_with_shapes_and_renames_nothing():
    model = Mixed()
    model.heads["tags"].bias.frozen = True
    assert repr(model) == (
        "Mixed, 30 parameters: scale (2,), gates.0 (3,), gates.1 (4,), heads.scale (6,), "
        "again (2,)\n"
        "  heads.tags Linear: weight (5, 2), bias (5,) frozen"
    )
    assert model.heads["tags"].weight.name == "weight"


class Nested(models.Module):
    """A grid of layers, and more of them by name."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.dropout = [[models.Dropout(0.5)]]
        self.layers = [[models.Linear(2, 2, rng=rng) for _ in range(2)]]
        self.named = {"a": [models.Linear(2, 2, rng=rng)]}

    def __call__(self, x):
        for layer in (*self.layers[0], *self.named["a"]):
            x = F.tanh(layer(x))
        return self.dropout[0][0](x)


NESTED = ("layers.0.0", "layers.0.1", "named.a.0")


def test_nested_layers_are_called_as_pytorch_calls_them():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Module()
    theirs.layers = torch.nn.ModuleList(
        [torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])]
    )
    theirs.named = torch.nn.ModuleDict({"a": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
    ours = Nested()
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_nested_layers_are_trained_saved_and_printed(tmp_path):
    model, other = Nested(), Nested(1)
    before = model.state_dict()
    optimizer = optim.SGD(model, lr=0.1)
    with db.Graph(seed=0) as graph:
        graph.backward(F.sum(F.sum(model(F.input(graph, np.ones((3, 2)))))))
    assert all([parameter.grad is not None for parameter in model.parameters()])
    optimizer.step()
    after = model.state_dict()
    assert list(after) == [f"{name}.{kind}" for name in NESTED for kind in ("weight", "bias")]
    assert all([(after[name] != before[name]).any() for name in after])
    save_checkpoint(tmp_path / "model.safetensors", model)
    load_checkpoint(tmp_path / "model.safetensors", other)
    assert all([(value == after[name]).all() for name, value in other.state_dict().items()])
    assert repr(model).splitlines() == [
        "Nested, 18 parameters",
        "  dropout.0.0 Dropout",
        *[f"  {name} Linear: weight (2, 2), bias (2,)" for name in NESTED],
    ]


def test_nested_layers_know_training_dtype_and_device(cuda):
    model = Nested()
    assert model.eval().dropout[0][0].training is False
    assert model.train().dropout[0][0].training is True
    assert {p.dtype for p in model.astype(np.float64).parameters()} == {np.dtype(np.float64)}
    assert {p.device.name for p in model.to("cuda").parameters()} == {"cuda"}
    assert len(model.parameters()) == 6


def test_nested_scans_are_made_to_recompute_by_the_comparison_with_padding():
    model = models.Module()
    model.layers = [{"rnn": models.LSTM(2, 3)}]
    with recomputing(model):
        assert model.layers[0]["rnn"].recompute == "sqrt"
    assert model.layers[0]["rnn"].recompute is None


class Weights(NamedTuple):
    recurrent: models.Linear
    given: list


@db.cell
def nested_cell(x, h, p):
    h = F.tanh(p.layers[0].recurrent(h) + p.layers[0].given[0]["x"](x))
    return h, h


def test_a_cell_reads_nested_layers_of_its_parameters():
    rng = np.random.default_rng(0)
    model = models.Module()
    model.layers = [Weights(models.Linear(3, 3, rng=rng), [{"x": models.Linear(2, 3, rng=rng)}])]
    with db.Graph() as graph:
        xs = F.input(graph, rng.standard_normal((4, 2)))
        ys, _ = db.scan(nested_cell, xs, 3, model)
        graph.backward(F.sum(F.sum(ys)))
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    assert names == [
        "layers.0.recurrent.weight",
        "layers.0.recurrent.bias",
        "layers.0.given.0.x.weight",
        "layers.0.given.0.x.bias",
    ]


PYTORCHS = {
    "LSTM": ((3, 4, 2), {"bidirectional": True}),
    "GRU": ((3, 4, 2), {"bidirectional": True}),
    "Linear": ((3, 4), {}),
    "Embedding": ((5, 3), {}),
    "LayerNorm": ((5,), {}),
    "RMSNorm": ((5,), {}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("kind", PYTORCHS)
def test_state_dicts_of_pytorchs_layers_go_in_and_out_as_they_are(kind, dtype):
    torch = pytest.importorskip("torch")
    given, options = PYTORCHS[kind]
    theirs = getattr(torch.nn, kind)(*given, **options).to(getattr(torch, dtype))
    ours = getattr(models, kind)(*given, **options)
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict({name: torch.from_numpy(v) + 1 for name, v in ours.state_dict().items()})
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(value.numpy(), ours.state_dict()[name] + 1, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("bfloat16", r"state 'bias'(.|\n)*tensor.float\(\)"), ("complex64", "values of")],
)
def test_values_that_are_not_numbers_of_numpy_load_nothing(kind, said):
    torch = pytest.importorskip("torch")
    ours = models.Linear(3, 4)
    before = ours.state_dict()
    state = {name: torch.from_numpy(value) + 1 for name, value in before.items()}
    state["bias"] = state["bias"].to(getattr(torch, kind))
    with pytest.raises(DtypeError, match=said):
        ours.load_state_dict(state)
    assert all([(value == before[name]).all() for name, value in ours.state_dict().items()])


def test_a_module_with_forward_only_says_how_it_is_called():
    class Ported(models.Module):
        def forward(self, x):
            return x

    class Called(Ported):
        def __call__(self, x):
            return self.forward(x)

    with pytest.raises(ArgumentError, match=r"Ported: called(.|\n)*name the method __call__"):
        Ported()(1)
    assert Ported().forward(1) == Called()(1) == 1


def test_a_state_of_another_depth_is_told_by_its_first_names():
    deep, flat = (models.TransformerEncoder(layers, 4, 2) for layers in (9, 1))
    with pytest.raises(CheckpointError) as caught:
        deep.load_state_dict(flat.state_dict())
    assert "'layers.1.linear1.bias'" in str(caught.value) and " and 84 more\n" in str(caught.value)
    assert len(str(caught.value)) < 700


def test_frozen_parameters_are_counted_and_buffers_are_not():
    model = models.Sequential(models.Linear(3, 2))
    norm = models.BatchNorm(5)
    model.parameters()[0].frozen = True
    assert (model.num_parameters(), norm.num_parameters()) == (3 * 2 + 2, 10)
    assert "8 parameters" in repr(model)
