"""The Transformer in dynbatch: about ten nodes for a sentence and layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import dynbatch as db
from benchmarks.networks import Array, TransformerSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models
from dynbatch import nodes as F


class TransformerBlock(models.Module):
    """One layer; the formulas stand in `TransformerSizes`."""

    def __init__(self, sizes: TransformerSizes) -> None:
        hidden = sizes.hidden
        self.heads = sizes.heads
        self.attention_norm = models.LayerNorm(hidden)
        self.project = models.Linear(hidden, 3 * hidden)
        self.merge = models.Linear(hidden, hidden)
        self.inner_norm = models.LayerNorm(hidden)
        self.expand = models.Linear(hidden, sizes.inner)
        self.contract = models.Linear(sizes.inner, hidden)

    def __call__(self, x: db.Node) -> db.Node:
        query, keys, values = F.chunk(self.project(self.attention_norm(x)), 3)
        seen = F.attention(query, keys, values, causal=True, heads=self.heads)
        x = x + self.merge(seen)
        return x + self.contract(F.gelu(self.expand(self.inner_norm(x))))


class Transformer(models.Module):
    """A language model; one sentence's loss."""

    def __init__(self, sizes: TransformerSizes) -> None:
        self.word = models.Embedding(sizes.vocabulary, sizes.hidden)
        self.position = models.Embedding(sizes.longest, sizes.hidden)
        self.blocks = [TransformerBlock(sizes) for _ in range(sizes.layers)]
        self.norm = models.LayerNorm(sizes.hidden)
        self.output = models.Linear(sizes.hidden, sizes.vocabulary)

    def loss(self, graph: db.Graph, words: Array, targets: Array) -> db.Node:
        """Cross-entropy summed over the words."""
        x = self.word(graph, words) + self.position(graph, np.arange(len(words)))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.output(self.norm(x)), targets, reduction="sum")


class DynbatchTransformer(DynbatchContender):
    """The language model as a user writes it."""

    def __init__(
        self, sizes: TransformerSizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        self._model = Transformer(sizes)
        load_values(self._model, values)
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        return self._model.loss(graph, source, target)
