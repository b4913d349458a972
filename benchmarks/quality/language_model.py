"""The GPT on bytes of `examples.language_model`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, dropped, inside, linear, padded
from dynbatch import nodes as F
from dynbatch import train
from examples.corpora import texts
from examples.language_model.train import GPT, arguments, bits_per_byte, numbered


class LanguageModel(Task):
    """Debian's fortunes, document by document."""

    name = "language model"
    data = "bytes of Debian's fortunes, 0.9 MB, 3 epochs"
    clip = 1.0
    decay = 0.01

    def __init__(self) -> None:
        self.options = options = arguments(["fortunes", "--epochs", "3"])
        corpus = texts.load(options.data)
        self._held_out = numbered(corpus.dev)
        batches = train.TokenBatches(numbered(corpus.train), options.max_tokens)
        self.model = GPT(options.width, options.layers, options.heads, options.dropout)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        loss = F.sum([self.model.loss(graph, ids) for ids in batch])
        return loss / sum([len(ids) - 1 for ids in batch])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        ids, lengths = padded([ids[:-1] for ids in batch])
        labels, _ = padded([ids[1:] for ids in batch])
        real, table = inside(lengths), weights["embed.weight"]
        x = dropped(table[ids], self)
        for layer in range(self.options.layers):
            x = self._layer(x, weights, f"layers.layers.{layer}")
        x = _normed(x, weights, "layers.norm")
        return functional.cross_entropy(functional.linear(x[real], table), labels[real])

    def _layer(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        """Pre-norm; padding stands behind, where a causal token does not look."""
        normed, heads = _normed(x, weights, f"{name}.norm1"), self.options.heads
        joined = functional.linear(normed, weights[f"{name}.self_attn.in_proj_weight"])
        q, k, v = [
            part.unflatten(2, (heads, -1)).transpose(1, 2) for part in joined.chunk(3, dim=2)
        ]
        seen = functional.scaled_dot_product_attention(_turned(q), _turned(k), v, is_causal=True)
        seen = seen.transpose(1, 2).flatten(2)
        x = x + dropped(linear(seen, weights, f"{name}.self_attn.out_proj"), self)
        inner = functional.gelu(
            linear(_normed(x, weights, f"{name}.norm2"), weights, f"{name}.linear1")
        )
        return x + dropped(linear(inner, weights, f"{name}.linear2"), self)

    def evaluate(self) -> dict[str, float]:
        held_out = train.TokenBatches(self._held_out, self.options.max_tokens)
        return {"bits per byte": bits_per_byte(self.model, held_out)}


def _normed(x: Tensor, weights: Weights, name: str) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"])


def _turned(x: Tensor) -> Tensor:
    """Rotary positions of (…, T, d): feature i goes with i + d / 2."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * frequencies
    a, b, cos, sin = x[..., :half], x[..., half:], angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
