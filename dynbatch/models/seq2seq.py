"""Sequence to sequence: a bi-LSTM encoder and an attentional LSTM decoder with input feeding."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import number, size, sizes, switch
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.cells import cell, scan
from dynbatch.errors import ShapeError
from dynbatch.models.attention import make_attention
from dynbatch.models.initial import Rng, generator, normal, uniform
from dynbatch.models.layers import Dropout, Embedding, Linear
from dynbatch.models.module import Module
from dynbatch.models.rnn import LSTM, lstm_step
from dynbatch.nodes.arguments import same_ids
from dynbatch.nodes.node import Node, Owner


class DecoderLayer(Module):
    """One LSTM layer of the decoder: weight_ih (4H, I), weight_hh (4H, H), bias (4H,)."""

    def __init__(self, input_size: int, hidden: int, rng: np.random.Generator) -> None:
        self.weight_ih = uniform(rng, (4 * hidden, input_size), hidden)
        self.weight_hh = uniform(rng, (4 * hidden, hidden), hidden)
        self.bias = uniform(rng, (4 * hidden,), hidden)


class Decoder(Module):
    """The parameters of the decoder; see `decoder_step`.

    Parameters: layers.N.*; feed.weight (4H, H), from the attentional vector to the first layer's
        gates; attention.*; context.weight (H, memory_size) and state.weight (H, H), the two halves
        of W_c.
    """

    def __init__(
        self,
        embed: int,
        hidden: int,
        memory_size: int,
        layers: int,
        attention: str,
        rng: np.random.Generator,
    ) -> None:
        self.layers = [
            DecoderLayer(hidden if layer else embed, hidden, rng) for layer in range(layers)
        ]
        self.feed = Linear(hidden, 4 * hidden, bias=False, rng=rng)
        self.attention = make_attention(attention, hidden, memory_size, rng)
        self.context = Linear(memory_size, hidden, bias=False, rng=rng)
        self.state = Linear(hidden, hidden, bias=False, rng=rng)


def decoder_step(
    x: Node, state: tuple[Node, ...], p: Decoder, memory: tuple[Node, ...]
) -> tuple[Node, tuple[Node, ...]]:
    """One step of a target sentence.

        h, c = LSTM layers on [x; feed];   a_j = softmax_j(score(h, m_j))
        feed = tanh(W_c [Σ_j a_j m_j; h]) = tanh(Σ_j a_j (W_context m_j) + W_state h)

    Args:
        x:      embedding of the token before.
        state:  (h, c) of each layer, one after the other, then feed.
        p:      a `Decoder`.
        memory: (keys, values) of the source. The values are W_context m_j: attention is a weighted
                mean, so W_context can be applied once to the source instead of at each step.

    Source: Luong et al. 2015, arXiv:1508.04025, equation 5 and section 3.3 (input feeding).
    """
    *states, feed = state
    following: list[Node] = []
    for k, layer in enumerate(p.layers):
        h, c = states[2 * k : 2 * k + 2]
        gates = F.linear(x, layer.weight_ih, layer.bias) + F.linear(h, layer.weight_hh)
        if k == 0:
            gates = gates + p.feed(feed)
        x, c = lstm_step(gates, c)
        following += [x, c]
    feed = F.tanh(p.attention.attend(x, memory) + p.state(x))
    return feed, (*following, feed)


decoder_cell = cell(decoder_step)


class Seq2Seq(Module):
    """A bi-LSTM encoder; an LSTM decoder with attention and input feeding; a softmax over words.

    Args:
        source_vocab, target_vocab: numbers of ids.
        embed:        features of both embeddings.
        hidden:       of the encoder in each direction, and of the decoder.
        layers:       of the encoder and of the decoder.
        attention:    "additive" (Bahdanau) or "general" (Luong).
        dropout:      on embeddings, between the encoder's layers and before the softmax.
        bridge:       begin the decoder from h_k = tanh(W_k s + b_k), c_k = W'_k s + b'_k, where s
                      joins the last states of the encoder's top layer; else from zeros.
        tie_weights:  share the target embedding with the softmax; needs embed == hidden.
        label_smoothing: ε of the loss while training.
        begin, end:   ids of the marks around target sentences; `db.generate` begins with the one,
                      and ends a sentence at the other.
        rng:          generator or seed of the initial values.
        recompute:    what backward of encoder and decoder makes again rather than find it kept:
                      see `db.scan`.

    Raises:
        ShapeError: `tie_weights` with embed != hidden.
        ArgumentError: unknown attention; a size is not an integer above 0, a rate is outside
            [0, 1], or label_smoothing is 1, which leaves nothing to learn.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16)
        >>> with db.Graph() as graph:
        ...     loss = model.loss(graph, source=[4, 5, 6], target=[7, 3])
        ...     graph.backward(loss)
        >>> 3 < float(loss.value) < 12              # three tokens with </s>, each about ln 12 nats
        True
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        embed: int,
        hidden: int,
        layers: int = 1,
        attention: str = "additive",
        dropout: float = 0.0,
        *,
        bridge: bool = True,
        tie_weights: bool = False,
        label_smoothing: float = 0.0,
        begin: int = 0,
        end: int = 1,
        rng: Rng = None,
        recompute: int | str | None = None,
    ) -> None:
        sizes(
            self, source_vocab=source_vocab, target_vocab=target_vocab, embed=embed, hidden=hidden,
            layers=layers,
        )  # fmt: skip
        switch(self, "bridge", bridge)
        if switch(self, "tie_weights", tie_weights) and embed != hidden:
            raise ShapeError(
                f"Seq2Seq: tie_weights=True with embed={embed}, hidden={hidden}.\n"
                "  rule: one matrix embeds and projects, so that embed == hidden\n"
                "  fix:  make them equal, or leave the weights untied"
            )
        rng = generator(rng)
        self.begin, self.end = size(self, "begin", begin, 0), size(self, "end", end, 0)
        self.recompute = recompute
        self.label_smoothing = number(self, "label_smoothing", label_smoothing, "[0, 1)")
        self.source_embedding = Embedding(source_vocab, embed, rng=rng)
        self.target_embedding = Embedding(target_vocab, embed, rng=rng)
        self.encoder = LSTM(
            embed, hidden, layers, bidirectional=True, dropout=dropout, rng=rng,
            recompute=recompute,
        )  # fmt: skip
        self.decoder = Decoder(embed, hidden, 2 * hidden, layers, attention, rng)
        self.bridges = [
            Linear(2 * hidden, hidden, rng=rng) for _ in range(2 * layers if bridge else 0)
        ]
        self.output = Linear(hidden, target_vocab, rng=rng)
        self.dropout = Dropout(dropout)
        self._starts_at_zero = (hidden,) * (2 * layers + 1)
        if tie_weights:
            # N(0, 1) rows would make logits of deviation √embed.
            self.target_embedding.weight = normal(rng, (target_vocab, embed), embed**-0.5)
            self.output.weight = self.target_embedding.weight

    @property
    def start(self) -> int:
        """The id from which the decoder begins."""
        return self.begin

    def encode(self, graph: Owner, source: ArrayLike) -> tuple[Node, ...]:
        """Run the encoder on one source sentence of ids, (T,).

        Returns:
            What the decoder starts from: h and c (H,) of each of its layers, where there is a
            bridge; keys and values (T, H).
        """
        return self._encoded(graph, same_ids("Seq2Seq.encode", source))

    @block
    def _encoded(self, graph: Owner, source: Array) -> tuple[Node, ...]:
        """The parts of the state that do not begin at zero, keys and values."""
        x = self.dropout(self.source_embedding(graph, source))
        h_and_c: list[Node] = []
        if self.bridges:
            outputs, last = self.encoder(x, return_state=True)
            summary = F.concat([h for h, _ in last[-2:]])  # (2H,)
            mapped = [bridge(summary) for bridge in self.bridges]
            h_and_c = [y if k % 2 else F.tanh(y) for k, y in enumerate(mapped)]
        else:
            outputs = self.encoder(x)
        return *h_and_c, self.decoder.attention.keys(outputs), self.decoder.context(outputs)

    def decode(self, graph: Owner, ids: ArrayLike, *encoded: Node) -> Node:
        """The decoder's vectors after each of the ids (T,) that it has read, (T, H)."""
        *state, keys, values = encoded
        return scan(
            decoder_cell, self.dropout(self.target_embedding(graph, ids)),
            (*state, *self._starts_at_zero[len(state) :]), self.decoder, (keys, values),
            recompute=self.recompute, return_state=False,
        )  # fmt: skip

    def predict(self, hidden: Node) -> Node:
        """The logits (T, V) of the tokens after vectors (T, H)."""
        return self.output(self.dropout(hidden))

    def loss(
        self, graph: Owner, source: ArrayLike, target: ArrayLike, reduction: str = "sum"
    ) -> Node:
        """Cross-entropy of one pair in nats, over the target's tokens and `</s>`.

        Args:
            source:    T_source ids.
            target:    T_target ids, without marks; the decoder reads `<s>` before them.
            reduction: "sum" or "mean" over the T_target + 1 tokens.
        """
        source_ids, ids = same_ids("Seq2Seq.loss", source), same_ids("Seq2Seq.loss", target)
        marked = np.empty(ids.size + 2, ids.dtype)
        marked[0], marked[1:-1], marked[-1] = self.begin, ids, self.end
        return self._loss(graph, source_ids, marked[:-1], marked[1:], reduction)

    @block
    def _loss(
        self, graph: Owner, source: Array, read: Array, written: Array, reduction: str
    ) -> Node:
        return F.cross_entropy(
            self.predict(self.decode(graph, read, *self.encode(graph, source))),
            written,
            label_smoothing=self.label_smoothing if self.training else 0.0,
            reduction=reduction,
        )
