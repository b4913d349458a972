"""Freezing: by names, with what backward and optimizers then leave out."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError


def trained(model):
    return [name for name, parameter in model.named_parameters() if not parameter.frozen]


@pytest.mark.parametrize(
    "names, left",
    [
        ([], []),
        (["norm1.*", "**_proj.bias"], ["self_attn.in_proj_weight", "self_attn.in_proj_bias",
         "self_attn.out_proj.weight", "linear1.weight", "linear1.bias", "linear2.weight",
         "linear2.bias", "norm2.weight", "norm2.bias"]),
        (["**.weight", "*.bias", "self_attn.in_proj_*"], ["self_attn.out_proj.bias"]),
    ],
)  # fmt: skip
def test_parameters_are_frozen_by_name_and_counted(names, left):
    model = models.TransformerEncoderLayer(4, 2)
    count = models.freeze(model, *names)
    assert trained(model) == left
    assert count == sum(p.size for p in model.parameters() if p.frozen)
    assert models.freeze(model, *names) == 0
    assert models.unfreeze(model) == count and len(trained(model)) == 12


def test_a_name_that_stands_for_no_parameter_is_refused_and_nothing_is_frozen():
    model = models.Linear(2, 2)
    with pytest.raises(ArgumentError, match="freeze: 'wieght' stands for no parameter of this"):
        models.freeze(model, "bias", "wieght")
    assert trained(model) == ["weight", "bias"]


def test_a_buffer_stays_one():
    model = models.BatchNorm(3)
    models.freeze(model)
    models.unfreeze(model)
    assert trained(model) == ["weight", "bias"]


def test_only_trained_parameters_get_gradients_and_state():
    model = models.Sequential(*[models.Linear(4, 4) for _ in range(3)])
    models.freeze(model)
    models.unfreeze(model, "1.bias")
    optimizer = optim.Adam(model)
    with db.Graph() as graph:
        loss = F.sum(model(F.input(graph, np.ones((3, 4)))))
        graph.backward(loss)
    assert [p.name for p in model.parameters() if p.grad is not None] == ["1.bias"]
    optimizer.step()
    assert {name.partition("/")[0] for name in optimizer.state_dict()} == {"1.bias", "lr"}
    assert optimizer.state_bytes == 2 * 4 * 4


def test_a_frozen_linear_map_keeps_no_input_for_backward():
    layers, value = 6, 50 * 8 * 4

    def peak(*frozen):
        model = models.Sequential(*[models.Linear(8, 8) for _ in range(layers)])
        for name in frozen:
            models.freeze(model, name)
        with db.Graph() as graph:
            graph.backward(F.sum(model(F.input(graph, np.ones((50, 8))))))
            return graph.statistics.peak_bytes

    assert peak() > layers * value
    assert peak(*[f"{k}.*" for k in range(1, layers)]) < 5 * value
    assert peak(*[f"{k}.weight" for k in range(1, layers)]) < 5 * value


@pytest.mark.parametrize("settings", [{"check": True}, {"guard": True}])
def test_a_frozen_map_is_checked_as_others(settings):
    model = models.FeedForward(4, 8, "gelu", rng=0)
    models.freeze(model, "linear2.*")
    x = np.ones((3, 4))
    with db.Graph(dtype="float64", **settings) as graph:
        given = F.input(graph, x).keep()
        graph.backward(F.sum(model(given) ** 2))
    assert model.linear1.weight.grad is not None and model.linear2.weight.grad is None
