"""The text CNN in PyTorch: `nn.Conv1d` over padded batches, and the maximum over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.lengths import Batch
from benchmarks.networks import WINDOWS, Array, CnnSizes
from benchmarks.peers.pytorch import PyTorchContender, padded


@dataclass(frozen=True)
class PaddedTexts:
    """A padded batch.

    Args:
        words:   (B, T) ids; padding has one of its own, whose vector is 0.
        outside: for each window size (B, 1, T + size - 1): which windows hold padding alone.
        classes: (B,).
    """

    words: Tensor
    outside: tuple[Tensor, ...]
    classes: Tensor


class PaddedCnn(PyTorchContender):
    """Padded batches. Windows of padding alone do not reach the maximum: nothing is inexact."""

    def __init__(
        self, sizes: CnnSizes, values: Mapping[str, Array], is_bucketed: bool = False,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        name = "pytorch-bucketed" if is_bucketed else "pytorch-padded"
        table = values["embedding.weight"]
        table = np.concatenate([table, np.zeros_like(table[:1])])
        super().__init__(name, text_cnn(sizes), {**values, "embedding.weight": table}, device)
        self.is_bucketed = is_bucketed
        self._filler = sizes.vocabulary

    def arrange(self, batch: Batch) -> PaddedTexts:
        words = padded(batch.sources, self._filler).T.contiguous()
        lengths = torch.tensor([[len(source)] for source in batch.sources])
        places = [torch.arange(words.shape[1] + size - 1)[None] for size in WINDOWS]
        outside = [
            (place >= lengths + size - 1)[:, None]
            for place, size in zip(places, WINDOWS, strict=True)
        ]
        classes = torch.tensor([int(target[0]) for target in batch.targets])
        return PaddedTexts(words, tuple(outside), classes)

    def forward(self, prepared: PaddedTexts) -> Tensor:
        embedded = self.model.embedding(prepared.words).transpose(1, 2)  # (B, D, T)
        answers = [
            # A sentence has a window, whose answer is 0 or more: 0 is no other's maximum.
            convolve(embedded).relu().masked_fill(outside, 0).amax(dim=2)
            for convolve, outside in zip(self.model.convolutions, prepared.outside, strict=True)
        ]
        return functional.cross_entropy(self.model.output(torch.cat(answers, 1)), prepared.classes)


def text_cnn(sizes: CnnSizes) -> nn.Module:
    """The network of `CnnSizes`, at random values, with a vector of padding more."""
    network = nn.Module()
    network.embedding = nn.Embedding(
        sizes.vocabulary + 1, sizes.embedding, padding_idx=sizes.vocabulary
    )
    network.convolutions = nn.ModuleList(
        [nn.Conv1d(sizes.embedding, sizes.hidden, size, padding=size - 1) for size in WINDOWS]
    )
    network.output = nn.Linear(len(WINDOWS) * sizes.hidden, sizes.classes)
    return network
