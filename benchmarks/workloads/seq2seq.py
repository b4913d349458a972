"""`models.Seq2Seq` as it comes, but for a decoder that begins at zero."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import dynbatch as db
from benchmarks.networks import END_SYMBOL, START_SYMBOL, Array, Seq2SeqSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models


class DynbatchSeq2Seq(DynbatchContender):
    """bi-LSTM encoder, LSTM decoder with additive attention and input feeding."""

    def __init__(
        self,
        sizes: Seq2SeqSizes,
        values: Mapping[str, Array],
        device: str = "cpu",
        recompute: int | str | None = None,
    ) -> None:
        self._model = models.Seq2Seq(
            sizes.source_vocabulary,
            sizes.target_vocabulary,
            sizes.embedding,
            sizes.hidden,
            attention="additive",
            bridge=False,
            begin=START_SYMBOL,
            end=END_SYMBOL,
            recompute=recompute,
        )
        load_values(self._model, to_dynbatch(values))
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        # The model adds the mark that ends the target itself.
        return self._model.loss(graph, source, target[:-1])


def to_dynbatch(values: Mapping[str, Array]) -> dict[str, Array]:
    """The decoder's values under the names of `models.Seq2Seq`; the others keep theirs."""
    renamed = {
        "cells.0.weight_hh": "decoder.layers.0.weight_hh",
        "cells.0.bias_ih": "decoder.layers.0.bias",
        "key.weight": "decoder.attention.key.weight",
        "query.weight": "decoder.attention.query.weight",
        "score": "decoder.attention.vector",
        "context.weight": "decoder.context.weight",
        "state.weight": "decoder.state.weight",
    }
    found = {renamed.get(name, name): value for name, value in values.items()}
    embedding = values["target_embedding.weight"].shape[1]
    word, feed = np.split(found.pop("cells.0.weight_ih"), [embedding], axis=1)
    return {**found, "decoder.layers.0.weight_ih": word, "decoder.feed.weight": feed}
