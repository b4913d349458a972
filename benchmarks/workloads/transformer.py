"""The Transformers in dynbatch: a language model, and a layer of BERT."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import dynbatch as db
from benchmarks.networks import Array, BertLayerSizes, TransformerSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models
from dynbatch import nodes as F


class TransformerBlock(models.Module):
    """One layer; the formulas stand in `TransformerSizes` and `BertLayerSizes`."""

    def __init__(self, sizes: TransformerSizes | BertLayerSizes) -> None:
        hidden = sizes.hidden
        self.heads = sizes.heads
        self.norm_first = isinstance(sizes, TransformerSizes)
        self.attention_norm = models.LayerNorm(hidden)
        self.project = models.Linear(hidden, 3 * hidden)
        self.merge = models.Linear(hidden, hidden)
        self.inner_norm = models.LayerNorm(hidden)
        self.expand = models.Linear(hidden, sizes.inner)
        self.contract = models.Linear(sizes.inner, hidden)

    def __call__(self, x: db.Node) -> db.Node:
        if self.norm_first:
            x = x + self._seen(self.attention_norm(x), causal=True)
            return x + self._inner(self.inner_norm(x))
        x = self.attention_norm(x + self._seen(x, causal=False))
        return self.inner_norm(x + self._inner(x))

    def _seen(self, x: db.Node, causal: bool) -> db.Node:
        query, keys, values = F.chunk(self.project(x), 3)
        return self.merge(F.attention(query, keys, values, causal=causal, heads=self.heads))

    def _inner(self, x: db.Node) -> db.Node:
        return self.contract(F.gelu(self.expand(x)))


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


class BertLayer(models.Module):
    """Words, a layer of BERT-base, and a tag for each word; one sentence's loss."""

    def __init__(self, sizes: BertLayerSizes) -> None:
        self.word = models.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = [TransformerBlock(sizes) for _ in range(sizes.layers)]
        self.output = models.Linear(sizes.hidden, sizes.tags)

    def loss(self, graph: db.Graph, words: Array, tags: Array) -> db.Node:
        """Cross-entropy summed over the words."""
        x = self.word(graph, words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.output(x), tags, reduction="sum")


class DynbatchTransformer(DynbatchContender):
    """The language model, or BERT's layer, as a user writes them."""

    def __init__(
        self,
        sizes: TransformerSizes | BertLayerSizes,
        values: Mapping[str, Array],
        device: str = "cpu",
    ) -> None:
        causal = isinstance(sizes, TransformerSizes)
        self._model = Transformer(sizes) if causal else BertLayer(sizes)
        load_values(self._model, values)
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        return self._model.loss(graph, source, target)
