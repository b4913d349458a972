"""Tagger and sequence to sequence with a loop over tokens in Python, a call of a cell for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.tagger import DynbatchTagger
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.rnn import Weights, lstm_cell
from dynbatch.models.seq2seq import decoder_cell


class StepTagger(DynbatchTagger):
    """The tagger whose bi-LSTM calls `lstm_cell` word by word, instead of `models.LSTM`."""

    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        ids, tags = sentence
        model = self._model
        words, order = model.embedding(graph, ids), range(len(ids))
        left, right = (weights(model.encoder, suffix) for suffix in ("", "_reverse"))
        states = F.concat([along(words, order, left), along(words, order[::-1], right)])
        return F.cross_entropy(model.output(states), tags, reduction="sum")

    def num_cells(self, batch: Batch) -> int:
        return 2 * sum(map(len, batch.sources))


def weights(lstm: models.LSTM, suffix: str) -> Weights:
    """What one direction's cell reads."""
    return Weights(*[getattr(lstm, f"{name}_l0{suffix}") for name in Weights._fields])


def along(words: db.Node, order: Iterable[int], p: Weights) -> db.Node:
    """Outputs (T, H) of one direction."""
    state = (zeros(words.graph, p.weight_hh.shape[1]),) * 2
    outputs = {}
    for t in order:
        outputs[t], state = lstm_cell(words[t], state, p)
    return F.stack([outputs[t] for t in range(len(outputs))])


class StepSeq2Seq(DynbatchSeq2Seq):
    """Sequence to sequence whose decoder calls its cell word by word; the encoder as it comes."""

    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        source, target = sentence
        model = self._model
        widths, memory = model.encode(graph, source)
        before = np.concatenate(([model.begin], target[:-1]))
        words = model.target_embedding(graph, before)
        state = tuple(zeros(graph, width) for width in widths)
        feeds = []
        for t in range(len(target)):
            feed, state = decoder_cell(words[t], state, model.decoder, memory)
            feeds.append(feed)
        return F.cross_entropy(model.output(F.stack(feeds)), target, reduction="sum")

    def num_cells(self, batch: Batch) -> int:
        return sum(map(len, batch.targets))


def zeros(graph: Any, width: int) -> db.Node:
    """The state that a sentence begins with."""
    return F.constant(graph, 0.0, (width,))
