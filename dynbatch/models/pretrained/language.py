"""Common parts of families that write text: scores of words, and the loss of a text."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.models.initial import normal
from dynbatch.models.layers import Embedding, Linear
from dynbatch.models.next_token import next_token_loss
from dynbatch.models.pretrained.model import PretrainedModel
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner


def output_layer(words: Embedding, is_tied: bool, scale: float, rng: np.random.Generator) -> Linear:
    """The map from last values to scores of words: by the table of words, or a matrix of its own.

    Args:
        scale: deviation of the initial values of a matrix of its own.
    """
    return Linear.of(words.weight if is_tied else normal(rng, words.weight.shape, scale))


class CausalModel(PretrainedModel):
    """A family in which each token sees itself and those before it. It gives `logits`."""

    @property
    def positions(self) -> int | None:
        """Most tokens of a text; None for any number."""
        return None

    output: Linear

    @abstractmethod
    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""

    def predict(self, hidden: Node) -> Node:
        """Logits of words for the last layer's values, (T, D) -> (T, V)."""
        return self.output(hidden)

    def logits(self, graph: Owner, ids: ArrayLike) -> Node:
        """(T, V) for the token after each of the T."""
        return self.predict(self(graph, ids))

    def loss(
        self, graph: Owner, ids: ArrayLike, reduction: str = "sum", *, context: int = 0
    ) -> Node:
        """Cross-entropy in nats of all tokens but the first, each given those before it.

        Args:
            ids:       of the T tokens; what begins and ends a text is among them.
            reduction: "sum", or "mean" over the T - 1 - context tokens.
            context:   of the T - 1 predictions so many are not counted, the first ones; below
                T - 1, or 0.

        Raises:
            ArgumentError: `context` leaves nothing to count.
        """
        owner, features = f"{type(self).__name__}.loss", partial(self, graph)
        return next_token_loss(owner, ids, features, self.predict, reduction, context)


class TextToTextModel(PretrainedModel):
    """A family that reads a text and writes another. It gives `encode`, `decode` and `predict`."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The id with which the decoder begins."""

    @property
    def end(self) -> int:
        """The id that ends a text."""
        end: int = self.config.eos_token_id
        return end

    @abstractmethod
    def encode(self, graph: Owner, source: ArrayLike) -> Node:
        """The encoder's last values, (S, D)."""

    @abstractmethod
    def decode(self, graph: Owner, decoded: ArrayLike, memory: Node) -> Node:
        """The decoder's last values (T, D), over the encoder's."""

    @abstractmethod
    def predict(self, hidden: Node) -> Node:
        """Logits of words for the decoder's values, (T, D) -> (T, V)."""

    def __call__(self, graph: Owner, source: ArrayLike, decoded: ArrayLike) -> Node:
        """The decoder's last values, (T, D).

        Args:
            source:  ids of the text, its end among them.
            decoded: T ids that the decoder reads: its first, and words so far.
        """
        return self.decode(graph, decoded, self.encode(graph, source))

    def logits(self, graph: Owner, source: ArrayLike, decoded: ArrayLike) -> Node:
        """(T, V) for the word after each of T that the decoder reads."""
        return self.predict(self(graph, source, decoded))

    def loss(
        self, graph: Owner, source: ArrayLike, target: ArrayLike, reduction: str = "sum"
    ) -> Node:
        """Cross-entropy in nats of a text, its end among its ids, given another.

        Args:
            reduction: "sum", or "mean" over the target's words.
        """
        target = as_ids(f"{type(self).__name__}.loss", target)
        decoded = np.concatenate([[self.start], target])[: target.size]
        return F.cross_entropy(self.logits(graph, source, decoded), target, reduction=reduction)
