"""Words to dependency trees: vectors, a bi-LSTM, biaffine scores, the best tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.tasks.words import Lexicon, WordIds, WordVectors


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One sentence in numbers.

    Args:
        words:  ids of words and letters.
        tags:   (T,) of parts of speech; not read by a parser without tags.
        heads:  (T,) 0 for the root, j + 1 for word j.
        labels: (T,).
    """

    words: WordIds
    tags: Array
    heads: Array
    labels: Array


class Parser(models.Module):
    """A graph-based parser.

    Args:
        lexicon:    words and characters.
        num_tags:   parts of speech that are read; 0 for words alone.
        num_labels: K.
        features:   of a word's vector.
        letters:    features of a letter.
        hidden:     units of the bi-LSTM, in each direction.
        layers:     of the bi-LSTM.
        dropout:    of vectors, of the LSTM's outputs, and of what is scored.

    Source: Dozat & Manning 2017, arXiv:1611.01734, with smaller sizes.
    """

    def __init__(
        self, lexicon: Lexicon, num_tags: int, num_labels: int, features: int, letters: int,
        hidden: int, layers: int, dropout: float,
    ) -> None:  # fmt: skip
        self.vectors = WordVectors(lexicon, features, letters)
        self.tags = models.Embedding(num_tags, features // 2, scale=0.1) if num_tags else None
        width = features + (features // 2 if num_tags else 0)
        self.context = models.LSTM(width, hidden, layers, bidirectional=True, dropout=dropout)
        self.scores = models.BiaffineParser(2 * hidden, num_labels, dropout=dropout)
        self.dropout = models.Dropout(dropout)

    def states(self, graph: db.Graph, example: Example) -> Node:
        """What is known of each word in its sentence, (T, 2 hidden)."""
        x = self.vectors(graph, example.words)
        if self.tags is not None:
            x = F.concat([x, self.tags(graph, example.tags)])
        return self.dropout(self.context(self.dropout(x)))

    def loss(self, graph: db.Graph, example: Example) -> Node:
        """Negative log-likelihood of heads and labels, summed, in nats."""
        return self.scores.loss(self.states(graph, example), example.heads, example.labels)

    def parse(self, examples: Sequence[Example]) -> list[tuple[Array, Array]]:
        """Heads of the best tree, and labels of its arcs, of each sentence.

        Two runs a mini-batch: arcs for all, and, when their trees are known, labels for all.
        """
        arcs = db.predict(
            self, lambda graph, one: self.scores.arcs(self.states(graph, one)), examples
        )
        heads = [models.maximum_spanning_tree(scores) for scores in arcs]
        pairs = list(zip(examples, heads, strict=True))
        labels = db.predict(
            self,
            lambda graph, pair: self.scores.labels(self.states(graph, pair[0]), pair[1]),
            pairs,
        )
        return [(found, np.argmax(k, axis=1)) for found, k in zip(heads, labels, strict=True)]
