"""Layers: names, dropout that depends on the sentence alone, refusals."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.testing import check_batching
from tests.torch_parity import import_torch


@pytest.mark.parametrize("bias", [True, False])
def test_names_of_an_encoder_layer_are_pytorchs(bias):
    torch = import_torch()
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 12, bias=bias)
    ours = models.TransformerEncoderLayer(8, 2, 12, bias=bias)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.named_parameters()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == shapes


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_does_not_depend_on_the_other_sentences(norm, norm_first):
    layer = models.TransformerDecoderLayer(
        4, 2, 6, dropout=0.5, norm=norm, norm_first=norm_first, activation="geglu", memory_dim=3,
        rng=0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    examples = [(rng.standard_normal((n, 4)), rng.standard_normal((4 - n, 3))) for n in range(5)]
    check_batching(lambda graph, x, memory: layer(x, memory), examples, parameters=layer)


def test_dropout_is_off_after_eval():
    layer = models.TransformerEncoderLayer(4, 2, 6, dropout=0.5, rng=0)
    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (3, 4))
        training, first, second = layer(x), layer.eval()(x), layer(x)
        assert np.array_equal(first.value, second.value)
        assert not np.array_equal(first.value, training.value)


def test_an_unknown_norm_is_refused():
    with pytest.raises(ArgumentError, match="norm is 'batch'"):
        models.TransformerEncoderLayer(4, 2, norm="batch")
