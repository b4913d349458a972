"""Reads of a PyTorch module's parameters by a function: those that work, and those refused."""

import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, MissingParameterError

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.nn.utils import parametrizations, prune  # noqa: E402

from dynbatch.torch import Batched  # noqa: E402


def linear(graph, p, x):
    return F.linear(x, p.weight, p.bias)


@db.cell
def linear_cell(x, h, p):
    return F.linear(x, p.weight, p.bias), h


def scanned(graph, p, x):
    return db.scan(linear_cell, x, 1, p)[0]


COMPUTED = {
    "weight_norm": (nn.utils.weight_norm, "nn.utils.remove_weight_norm(module, 'weight')"),
    "spectral_norm": (nn.utils.spectral_norm, "remove_spectral_norm"),
    "a parametrization": (
        parametrizations.weight_norm,
        "nn.utils.parametrize.remove_parametrizations(module, 'weight')",
    ),
    "prune": (
        lambda module: prune.l1_unstructured(module, "weight", 0.5),
        "nn.utils.prune.remove(module, 'weight')",
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch, about weight_norm
@pytest.mark.parametrize("function", [linear, scanned])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_weight_that_pytorch_computes_is_told_how_it_becomes_a_parameter(name, function):
    change, fix = COMPUTED[name]
    module = nn.Linear(4, 3)
    change(module)
    with pytest.raises(MissingParameterError) as caught:
        Batched(function, module)([torch.ones(2, 4)])
    said = str(caught.value)
    assert "no parameter 'weight'" in said and fix in said and "test_sharing.py" in said


def test_the_way_to_undo_it_makes_a_module_that_runs():
    module = parametrizations.weight_norm(nn.Linear(4, 3))
    x = torch.ones(2, 4)
    expected = module(x)
    nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert torch.allclose(Batched(linear, module)([x])[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "fix"),
    [
        (lambda graph, p, x: F.linear(x, p.wieght), "p.weight may be meant; what is not trained"),
        (lambda graph, p, x: x * p.running_mean, "such as a buffer, is given as an argument"),
    ],
)
def test_another_name_is_answered_with_what_may_be_meant(function, fix):
    with pytest.raises(MissingParameterError, match=fix):
        Batched(function, nn.BatchNorm1d(4))([torch.ones(2, 4)])


def test_a_module_that_is_pruned_later_is_not_read_under_its_old_names():
    module = nn.Linear(3, 3)  # weight and bias change places, and a cell may take either
    batched = Batched(linear, module)
    batched([torch.ones(2, 3)])
    prune.random_unstructured(module, "weight", 0.5)
    with pytest.raises(
        ArgumentError, match="has lost weight of its parameters and got weight_orig"
    ):
        batched([torch.ones(2, 3)])
    prune.remove(module, "weight")  # puts the weight behind the bias
    with pytest.raises(ArgumentError, match="their order has changed"):
        batched([torch.ones(2, 3)])
    assert torch.allclose(Batched(linear, module)([torch.ones(2, 3)])[0], module(torch.ones(2, 3)))
