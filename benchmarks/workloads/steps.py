"""Tagger and sequence to sequence with a loop over tokens in Python, a call of a cell for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.networks import Array, TaggerSizes
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.tagger import DynbatchTagger
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.rnn import Weights, lstm_cell
from dynbatch.models.seq2seq import decoder_cell


class StepTagger(DynbatchTagger):
    """The tagger whose bi-LSTM calls `lstm_cell` word by word, instead of `models.LSTM`."""

    def __init__(
        self, sizes: TaggerSizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        super().__init__(sizes, values, device)
        self._left, self._right = (weights(self._model.encoder, s) for s in ("", "_reverse"))

    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        ids, tags = sentence
        model = self._model
        words, order = model.embedding(graph, ids), range(len(ids))
        left, right = along(words, order, self._left), along(words, order[::-1], self._right)
        states = F.concat([left, right])
        return F.cross_entropy(model.output(states), tags, reduction="sum")

    def num_cells(self, batch: Batch) -> int:
        return 2 * sum(map(len, batch.sources))


def weights(lstm: models.LSTM, suffix: str) -> Weights:
    """The weights that one direction's cell reads."""
    return Weights(*[getattr(lstm, f"{name}_l0{suffix}") for name in Weights._fields])


def along(words: db.Node, order: Iterable[int], p: Weights) -> db.Node:
    """Outputs (T, H) of one direction."""
    state = (p.weight_hh.shape[1],) * 2  # the widths of zeros
    outputs = {}
    for t in order:
        outputs[t], state = lstm_cell(words[t], state, p)
    return db.stack([outputs[t] for t in range(len(outputs))])


class StepSeq2Seq(DynbatchSeq2Seq):
    """Sequence to sequence whose decoder calls its cell word by word; the encoder as it comes."""

    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        source, target = sentence
        model = self._model
        keys, values = model.encode(graph, source)  # and no state, where there is no bridge
        state = (model.decoder.feed.weight.shape[1],) * 3  # widths of zeros
        before = np.concatenate(([model.begin], target[:-1]))
        words = model.target_embedding(graph, before)
        feeds = []
        for t in range(len(target)):
            feed, state = decoder_cell(words[t], state, model.decoder, (keys, values))
            feeds.append(feed)
        return F.cross_entropy(model.output(db.stack(feeds)), target, reduction="sum")

    def num_cells(self, batch: Batch) -> int:
        return sum(map(len, batch.targets))
