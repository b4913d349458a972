"""Transformers with every kind of positions."""

from __future__ import annotations

from typing import Any

from dynbatch import models
from dynbatch import nodes as F
from tests.sentence_models.sentence import (
    EMBED,
    HIDDEN,
    TAGS,
    WORDS,
    Build,
    Made,
    Sentence,
    kind,
    parameters,
    squares,
)


def encoder(**options: Any) -> Build:
    network = models.TransformerEncoder(
        2, HIDDEN, 4, 2 * HIDDEN, activation="gelu", dropout=0.0, rng=2, **options
    )
    output = models.Linear(HIDDEN, TAGS, rng=3)

    def build(sentence: Sentence) -> Made:
        x = sentence.rows(HIDDEN)
        y = network(x + F.sinusoidal(x), causal=True)
        return y, F.cross_entropy(output(y), sentence.ids % TAGS)

    return build


@kind
def transformer() -> Build:
    return encoder()


@kind
def rotary_transformer() -> Build:
    return encoder(rotary={}, kv_heads=2, norm="rms", norm_first=True)


@kind
def alibi_transformer() -> Build:
    return encoder(position_bias=F.alibi(4))


@kind
def t5_transformer() -> Build:
    return encoder(position_bias=F.t5_bias(parameters(t=(8, 4)).t, 9, bidirectional=False))


@kind
def relative_transformer() -> Build:
    return encoder(position_bias=F.relative_bias(parameters(t=(7, 4)).t))


@kind
def transformer_decoder() -> Build:
    network = models.TransformerDecoder(
        2, HIDDEN, 4, 2 * HIDDEN, memory_dim=EMBED, dropout=0.0, rng=2
    )

    def build(sentence: Sentence) -> Made:
        memory = sentence.rows(EMBED, 1)
        return squares(network(sentence.rows(HIDDEN, every=2), memory, window=5))

    return build


@kind
def gpt() -> Build:
    model = models.GPT(WORDS, 50, HIDDEN, 2, 4, seed=1)

    def build(sentence: Sentence) -> Made:
        y = model.features(sentence.graph, sentence.ids)
        return y, F.cross_entropy(model.scores(y), sentence.ids % TAGS)

    return build
