"""The tagger in dynbatch: embedding, bi-LSTM, linear layer, cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

import dynbatch as db
from benchmarks.networks import Array, TaggerSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models
from dynbatch import nodes as F


class Tagger(models.Module):
    """One sentence's tags."""

    def __init__(self, sizes: TaggerSizes) -> None:
        self.embedding = models.Embedding(sizes.vocabulary, sizes.embedding)
        self.encoder = models.LSTM(sizes.embedding, sizes.hidden, bidirectional=True)
        self.output = models.Linear(2 * sizes.hidden, sizes.tags)

    def loss(self, graph: db.Graph, words: Array, tags: Array) -> db.Node:
        """Cross-entropy summed over the words."""
        logits = self.output(self.encoder(self.embedding(graph, words)))
        return F.cross_entropy(logits, tags, reduction="sum")


class DynbatchTagger(DynbatchContender):
    """The tagger with `models.LSTM`."""

    def __init__(
        self, sizes: TaggerSizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        self._model = Tagger(sizes)
        load_values(self._model, values)
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        return self._model.loss(graph, source, target)
