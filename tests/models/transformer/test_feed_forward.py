"""`FeedForward`: activations and gates against PyTorch, refusals."""

import pytest

from dynbatch import models
from dynbatch.errors import ArgumentError
from dynbatch.models.transformer.feed_forward import ACTIVATIONS, GATES
from tests.torch_parity import assert_equals_torch, import_torch


def function_of(torch, name):
    functional = torch.nn.functional
    return {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
    }[name]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_equals_pytorch(activation):
    torch = import_torch()
    gated = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
    linear, f = torch.nn.functional.linear, function_of(torch, gated.get(activation, activation))
    assert (activation in gated) == (activation in GATES)

    def ours(x, *parameters):
        layer = models.FeedForward(4, 6, activation)
        layer.linear1.weight, layer.linear1.bias = parameters[:2]
        layer.linear2.weight, layer.linear2.bias = parameters[2:]
        return layer(x)

    def theirs(x, weight1, bias1, weight2, bias2):
        x = linear(x, weight1, bias1)
        if activation in gated:
            gate, x = x.chunk(2, dim=-1)
            return linear(f(gate) * x, weight2, bias2)
        return linear(f(x), weight2, bias2)

    rows = 12 if activation in gated else 6
    parameters = [(rows, 4), (rows,), (4, 6), (4,)]
    assert_equals_torch(ours, theirs, [(3, 4), (0, 4), (1, 4)], parameters)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ArgumentError, match="activation is 'swish'"):
        models.FeedForward(4, 6, "swish")
