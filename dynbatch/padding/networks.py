"""The networks of `dynbatch memory`: a tagger and a language model, each in a few lines.

Sequence to sequence is `models.Seq2Seq`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.models.initial import Rng
from dynbatch.models.layers import Embedding, Linear
from dynbatch.models.module import Module
from dynbatch.models.rnn import LSTM
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner


class Tagger(Module):
    """Embedding, bi-LSTM, linear layer: a class for each token.

    Args:
        vocabulary, tags: numbers of ids.
        embed, hidden:    features of the embedding, and of the LSTM in each direction.
        layers:           of the LSTM.
    """

    def __init__(
        self, vocabulary: int, tags: int, embed: int, hidden: int, layers: int = 1, rng: Rng = None
    ) -> None:
        self.embedding = Embedding(vocabulary, embed, rng=rng)
        self.encoder = LSTM(embed, hidden, layers, bidirectional=True, rng=rng)
        self.output = Linear(2 * hidden, tags, rng=rng)

    def loss(self, graph: Owner, words: ArrayLike, tags: ArrayLike) -> Node:
        """Cross-entropy of one sentence in nats, summed over its tokens."""
        states = self.encoder(self.embedding(graph, words))
        return F.cross_entropy(self.output(states), tags, reduction="sum")


class LanguageModel(Module):
    """Embedding, LSTM, softmax: each token from those before it.

    Args:
        vocabulary:    number of ids, with the mark that begins and ends a sentence.
        embed, hidden: features of the embedding and of the LSTM.
        layers:        of the LSTM.
        mark:          its id.
    """

    def __init__(
        self, vocabulary: int, embed: int, hidden: int, layers: int = 1, mark: int = 0,
        rng: Rng = None,
    ) -> None:  # fmt: skip
        self.mark = mark
        self.embedding = Embedding(vocabulary, embed, rng=rng)
        self.encoder = LSTM(embed, hidden, layers, rng=rng)
        self.output = Linear(hidden, vocabulary, rng=rng)

    def loss(self, graph: Owner, words: ArrayLike) -> Node:
        """Cross-entropy of one sentence in nats, summed over its tokens and the mark at its end."""
        read, written = self.read_and_written(as_ids("LanguageModel.loss", words))
        states = self.encoder(self.embedding(graph, read))
        return F.cross_entropy(self.output(states), written, reduction="sum")

    def read_and_written(self, ids: Array) -> tuple[Array, Array]:
        """The model's input and target: the sentence after and before a mark."""
        return np.concatenate(([self.mark], ids)), np.concatenate((ids, [self.mark]))
