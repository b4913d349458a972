"""The GPT on bytes of `examples.language_model`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, LikeLengths, Task, Weights, dropped, inside, padded
from benchmarks.quality.transformer import angles, layer, normed
from dynbatch import nodes as F
from dynbatch import train
from examples.corpora import texts
from examples.language_model.train import GPT, arguments, bits_per_byte, numbered


class LanguageModel(Task):
    """Debian's fortunes, document by document."""

    name = "language model"
    data = "bytes of Debian's fortunes, 0.9 MB, 3 epochs"
    example = "language_model"
    clip = 1.0
    decay = 0.01

    def __init__(self) -> None:
        self.options = options = arguments(["fortunes", "--epochs", "3"])
        corpus = texts.load(options.data)
        self._held_out = numbered(corpus.dev)
        batches = LikeLengths(numbered(corpus.train), options.max_tokens)
        self.model = GPT(options.width, options.layers, options.heads, options.dropout)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, ids) for ids in batch])
        return loss / sum([len(ids) - 1 for ids in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        ids, lengths = padded([ids[:-1] for ids in batch])
        labels, _ = padded([ids[1:] for ids in batch])
        real, table, heads = inside(lengths), weights["embed.weight"], self.options.heads
        turns = angles(ids.shape[1], table.shape[1] // heads)
        cos, sin = turns.cos(), turns.sin()

        def turned(x: Tensor) -> Tensor:
            """Rotary positions: feature i goes with i + d / 2."""
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        x = dropped(table[ids], self)
        for number in range(self.options.layers):  # padding is behind, where none of them looks
            x = layer(
                self, x, weights, f"layers.layers.{number}", heads, activation=functional.gelu,
                turned=turned, is_causal=True,
            )  # fmt: skip
        x = normed(x[real], weights, "layers.norm")
        return functional.cross_entropy(functional.linear(x, table), labels[real])

    def evaluate(self) -> dict[str, float]:
        held_out = train.TokenBatches(self._held_out, self.options.max_tokens)
        return {"bits per byte": bits_per_byte(self.model, held_out)}
