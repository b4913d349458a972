"""The Transformers in dynbatch: a language model, and a layer of BERT."""

from __future__ import annotations

from collections.abc import Mapping

import dynbatch as db
from benchmarks.networks import Array, BertLayerSizes, TransformerSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models
from dynbatch import nodes as F


class LanguageModel(models.Module):
    """The network of `TransformerSizes`; one sentence's loss."""

    def __init__(self, sizes: TransformerSizes) -> None:
        self.word = models.Embedding(sizes.vocabulary, sizes.hidden)
        self.position = models.Embedding(sizes.longest, sizes.hidden)
        self.encoder = models.TransformerEncoder(
            sizes.layers, sizes.hidden, sizes.heads, sizes.inner,
            dropout=0.0, activation="gelu", norm_first=True,
        )  # fmt: skip
        self.output = models.Linear(sizes.hidden, sizes.vocabulary)

    @db.block
    def states(self, x: db.Node) -> db.Node:
        """The output of the layers for word vectors: one node a sentence."""
        return self.encoder(x + F.positions(x, self.position.weight), causal=True)

    def loss(self, graph: db.Graph, words: Array, targets: Array) -> db.Node:
        """Cross-entropy summed over the words."""
        logits = self.output(self.states(self.word(graph, words)))
        return F.cross_entropy(logits, targets, reduction="sum")


class BertTagger(models.Module):
    """The network of `BertLayerSizes`; one sentence's loss."""

    def __init__(self, sizes: BertLayerSizes) -> None:
        self.word = models.Embedding(sizes.vocabulary, sizes.hidden)
        self.encoder = models.TransformerEncoder(
            sizes.layers, sizes.hidden, sizes.heads, sizes.inner, dropout=0.0, activation="gelu"
        )
        self.output = models.Linear(sizes.hidden, sizes.tags)

    @db.block
    def states(self, x: db.Node) -> db.Node:
        """The output of the layer for word vectors: one node a sentence."""
        return self.encoder(x)

    def loss(self, graph: db.Graph, words: Array, tags: Array) -> db.Node:
        """Cross-entropy summed over the words."""
        logits = self.output(self.states(self.word(graph, words)))
        return F.cross_entropy(logits, tags, reduction="sum")


class DynbatchTransformer(DynbatchContender):
    """The language model, or BERT's layer, as a user writes them."""

    def __init__(
        self,
        sizes: TransformerSizes | BertLayerSizes,
        values: Mapping[str, Array],
        device: str = "cpu",
    ) -> None:
        causal = isinstance(sizes, TransformerSizes)
        self._model = LanguageModel(sizes) if causal else BertTagger(sizes)
        load_values(self._model, values)
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        return self._model.loss(graph, source, target)
