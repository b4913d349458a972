"""A bi-LSTM tagger: a softmax for each word, or a CRF over the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.parameter import Array
from dynbatch.tasks.training import values
from examples.words import Lexicon, WordIds, WordVectors


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A sentence in ids, and the numbers of its tags (T,)."""

    words: WordIds
    tags: Array


class Tagger(models.Module):
    """Words to numbers of tags.

    Args:
        lexicon:  words and characters.
        num_tags: K.
        features: of a word's vector.
        letters:  features of a letter.
        hidden:   units of the LSTM, in each direction.
        dropout:  of word vectors and of the LSTM's outputs.
        crf:      whether transitions between tags are scored.

    Source: Huang, Xu & Yu 2015, arXiv:1508.01991.
    """

    def __init__(
        self, lexicon: Lexicon, num_tags: int, features: int, letters: int, hidden: int,
        dropout: float, crf: bool,
    ) -> None:  # fmt: skip
        self.vectors = WordVectors(lexicon, features, letters)
        self.context = models.LSTM(features, hidden, bidirectional=True)
        self.project = models.Linear(2 * hidden, num_tags)
        self.dropout = models.Dropout(dropout)
        self.crf = models.CRF(num_tags) if crf else None

    def emissions(self, graph: db.Graph, words: WordIds) -> Node:
        """Scores of each word's tags, (T, K)."""
        x = self.dropout(self.vectors(graph, words))
        return self.project(self.dropout(self.context(x)))

    def loss(self, graph: db.Graph, example: Example) -> Node:
        """Negative log-likelihood of a sentence's tags, summed, in nats."""
        emissions = self.emissions(graph, example.words)
        if self.crf is not None:
            return self.crf.loss(emissions, example.tags)
        return F.cross_entropy(emissions, example.tags, reduction="sum")

    def best(self, graph: db.Graph, words: WordIds) -> Node:
        """Numbers of the best tags, (T, 1)."""
        emissions = self.emissions(graph, words)
        return F.argmax(emissions, dim=-1) if self.crf is None else self.crf.viterbi(emissions)

    def predict(self, sentences: Sequence[WordIds]) -> list[Array]:
        """Numbers of the best tags of each sentence, (T,)."""
        return [tags[:, 0].astype(np.int64) for tags in values(self, self.best, sentences)]
