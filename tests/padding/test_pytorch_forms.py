"""PyTorch's networks compute the losses of dynbatch's models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the networks are PyTorch's")

import torch

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.padding import LanguageModel, PaddingError, Tagger
from dynbatch.padding.pytorch_forms import TorchModel

RNG = np.random.default_rng(0)
WORDS, OTHERS = ([RNG.integers(3, 9, size=4) for _ in range(3)] for _ in range(2))


def put(model: Any, network: Any) -> None:
    """Give a network the values of the model, whose decoder names them otherwise."""
    values = {
        name.removeprefix("decoder.").removeprefix("attention."): array.copy()
        for name, array in model.state_dict().items()
    }
    if isinstance(model, models.Seq2Seq):
        values["score"] = values.pop("vector")
        for k in range(len(model.decoder.layers)):
            layer, cell = f"layers.{k}", f"cells.{k}"
            values[f"{cell}.weight_ih"] = values.pop(f"{layer}.weight_ih")
            values[f"{cell}.weight_hh"] = values.pop(f"{layer}.weight_hh")
            values[f"{cell}.bias_ih"] = values.pop(f"{layer}.bias")
            values[f"{cell}.bias_hh"] = np.zeros_like(values[f"{cell}.bias_ih"])
        first = (values["cells.0.weight_ih"], values.pop("feed.weight"))
        values["cells.0.weight_ih"] = np.concatenate(first, axis=1)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})


@pytest.mark.parametrize(
    ("model", "examples"),
    [
        (Tagger(9, 9, 4, 5, layers=2, rng=0), list(zip(WORDS, OTHERS, strict=True))),
        (LanguageModel(9, 4, 5, layers=2, rng=0), [(words,) for words in WORDS]),
        (models.Seq2Seq(9, 9, 4, 5, layers=2, rng=0), list(zip(WORDS, OTHERS, strict=True))),
        (models.Seq2Seq(9, 9, 4, 5, bridge=False, rng=0), list(zip(WORDS, OTHERS, strict=True))),
    ],
)
def test_a_network_with_the_values_of_the_model_computes_its_loss(
    model: Any, examples: list[Any]
) -> None:
    peer = TorchModel(model)
    put(model, peer.network)
    with db.Graph() as graph:
        expected = F.mean([model.loss(graph, *example) for example in examples]).value
    assert float(peer.loss(examples)().detach()) == pytest.approx(float(expected), rel=1e-5)
    short = TorchModel(model, "bfloat16")
    put(model, short.network)
    loss = short.loss(examples)()
    assert float(loss.detach()) != float(peer.loss(examples)().detach())
    assert float(loss.detach()) == pytest.approx(float(expected), rel=2**-7)
    loss.backward()
    assert all([parameter.grad.dtype == torch.float32 for parameter in short.parameters])


def test_a_model_without_a_network_says_what_to_give() -> None:
    with pytest.raises(PaddingError, match="Linear has no form in PyTorch"):
        TorchModel(models.Linear(2, 2))
