"""A Transformer for pairs of sentences, with the interface of `models.Seq2Seq`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import sizes
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.layers import Dropout, Embedding, Linear
from dynbatch.models.module import Module
from dynbatch.models.transformer.stacks import Transformer
from dynbatch.nodes.node import Node, Owner


class TransformerTranslation(Module):
    """Embeddings with sinusoidal positions, encoder and decoder, and a softmax over tokens.

    The norms stand before the parts (pre-norm), so that no long warm-up is needed.

    Args:
        source_vocab, target_vocab: numbers of ids.
        hidden:          features of a token; inside the feed-forward parts four times as many.
        layers, heads:   of the encoder and of the decoder.
        dropout:         of embeddings and of the layers' parts.
        label_smoothing: ε of the loss while training.
        begin, end:      ids of the marks around target sentences; `db.generate` takes both.
        rng:             seed of the initial values.

    Source: Vaswani et al. 2017, arXiv:1706.03762; pre-norm Xiong et al. 2020, arXiv:2002.04745.
    """

    def __init__(
        self, source_vocab: int, target_vocab: int, hidden: int, layers: int = 2, heads: int = 4,
        dropout: float = 0.1, *, label_smoothing: float = 0.0, begin: int = 0, end: int = 1,
        rng: int | None = None,
    ) -> None:  # fmt: skip
        sizes(
            self, source_vocab=source_vocab, target_vocab=target_vocab, hidden=hidden,
            layers=layers, heads=heads,
        )  # fmt: skip
        generator = np.random.default_rng(rng)
        self.begin, self.end = begin, end
        self.label_smoothing = label_smoothing
        self.scale = hidden**0.5
        embedding = {"scale": 1 / self.scale, "rng": generator}
        self.source_embedding = Embedding(source_vocab, hidden, **embedding)
        self.target_embedding = Embedding(target_vocab, hidden, **embedding)
        self.dropout = Dropout(dropout)
        self.transformer = Transformer(
            hidden, heads, encoder_layers=layers, decoder_layers=layers, dropout=dropout,
            norm_first=True, rng=generator,
        )  # fmt: skip
        self.output = Linear(hidden, target_vocab, rng=generator)

    def loss(self, graph: Owner, source: ArrayLike, target: ArrayLike) -> Node:
        """Cross-entropy of one pair in nats, summed over the target's tokens and `</s>`."""
        ids = np.asarray(target, np.int64)
        states = self.decode(graph, self.opened(ids), self.encode(graph, source))
        return self.cross_entropy(states, np.append(ids, self.end))

    def opened(self, ids: Array) -> Array:
        """The decoder's input: `<s>` and the tokens."""
        return np.concatenate(([self.begin], ids))

    def cross_entropy(self, states: Node, targets: Array) -> Node:
        """The summed loss of the tokens (T,) after the decoder's values (T, hidden)."""
        smoothing = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(
            self.predict(states), targets, label_smoothing=smoothing, reduction="sum"
        )

    @property
    def start(self) -> int:
        """The id from which the decoder begins."""
        return self.begin

    @block
    def encode(self, graph: Owner, source: ArrayLike, mask: Array | None = None) -> Node:
        """The encoder's values, (S, hidden)."""
        return self.transformer.encoder(
            self._embed(graph, self.source_embedding, source), mask=mask
        )

    @block
    def decode(
        self, graph: Owner, read: ArrayLike, memory: Node, memory_mask: Array | None = None
    ) -> Node:
        """The decoder's values after each of the tokens that it has read, (T, hidden)."""
        x = self._embed(graph, self.target_embedding, read)
        return self.transformer.decoder(x, memory, memory_mask=memory_mask)

    def predict(self, hidden: Node) -> Node:
        """The logits (T, V) after vectors (T, hidden)."""
        return self.output(hidden)

    def _embed(self, graph: Owner, table: Embedding, ids: ArrayLike) -> Node:
        x = table(graph, ids)
        return self.dropout(x * self.scale + F.sinusoidal(x))
