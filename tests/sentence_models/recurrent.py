"""Recurrent networks, and scans that attend to a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dynbatch as db
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


@kind
def tagger() -> Build:
    words = models.Embedding(WORDS, EMBED, rng=1)
    lstm = models.LSTM(EMBED, HIDDEN, bidirectional=True, rng=2)
    output = models.Linear(2 * HIDDEN, TAGS, rng=3)

    def build(sentence: Sentence) -> Made:
        y = lstm(sentence.words(words))
        return y, F.cross_entropy(output(y), sentence.ids % TAGS)

    return build


@kind
def stacked_lstm() -> Build:
    """Two layers, from given states to last ones."""
    lstm = models.LSTM(EMBED, HIDDEN, layers=2, rng=2)

    def build(sentence: Sentence) -> Made:
        start = sentence.vector(), sentence.vector()
        ys, last = lstm(sentence.rows(), [start, start], return_state=True)
        return ys, F.sum(ys * ys) + F.sum(F.concat([part for state in last for part in state]))

    return build


@kind
def recomputed_gru() -> Build:
    gru = models.GRU(EMBED, HIDDEN, bidirectional=True, rng=2, recompute=3)
    return lambda sentence: squares(gru(sentence.rows()))


@kind
def small_cell() -> Build:
    """So few weights that the loop is not compiled."""
    p = parameters(x=(9, 7), h=(9, 9))

    @db.cell
    def elman(x: Any, h: Any, p: Any) -> Any:
        h = F.tanh(F.linear(x, p.x) + F.linear(h, p.h))
        return h, h

    return lambda sentence: squares(db.scan(elman, sentence.rows(7), 9, p, return_state=False))


@kind
def matrix_states() -> Build:
    """A matrix a head, which forgets, and is corrected by what it answers: a gated delta net."""

    @db.cell
    def step(x: Any, state: Any, p: Any) -> Any:
        q, k, v, gates = [F.reshape(part, (2, -1)) for part in F.split(x, [8, 8, 6, 4])]
        state = F.sigmoid(F.unsqueeze(gates[:, :1], -1)) * state
        wrong = v - F.vecmat(k, state)
        state = state + F.outer(k, F.sigmoid(gates[:, 1:]) * wrong)
        return F.reshape(F.vecmat(q, state), (-1,)), state

    def build(sentence: Sentence) -> Made:
        ys = db.scan(step, sentence.rows(26), db.zeros(2, 4, 3), return_state=False)
        return squares(ys)

    return build


@kind
def seq2seq() -> Build:
    model = models.Seq2Seq(WORDS, TAGS, EMBED, HIDDEN, rng=1)

    def build(sentence: Sentence) -> Made:
        sentence.tables.append(model.source_embedding)
        ids = sentence.ids
        y = model.loss(sentence.graph, ids, ids[: len(ids) // 2 + 1] % TAGS)
        return y, y

    return build


def attending(attend: Callable[..., Any], **options: Any) -> Build:
    """A scan of `attend(h, memory, p)`, with a memory of twice as many rows as tokens."""
    p = parameters(x=(HIDDEN, EMBED), h=(HIDDEN, HIDDEN), c=(HIDDEN, HIDDEN), a=(HIDDEN,))

    @db.cell
    def step(x: Any, h: Any, p: Any, memory: Any) -> Any:
        c = attend(h, memory, p)
        h = F.tanh(F.linear(x, p.x) + F.linear(h, p.h) + F.linear(c, p.c))
        return h, h

    def build(sentence: Sentence) -> Made:
        memory = F.concat([sentence.rows(HIDDEN, 1), sentence.rows(HIDDEN, 2)], dim=0)
        start = sentence.vector()
        ys, _ = db.scan(step, sentence.rows(), start, p, memory.keep(), **options)
        return squares(ys)

    return build


@kind
def scan_with_dot_attention() -> Build:
    return attending(lambda h, memory, p: F.attention(h, memory))


@kind
def scan_with_additive_attention() -> Build:
    return attending(lambda h, memory, p: F.additive_attention(h, memory, None, p.a), reverse=True)


@kind
def scan_with_general_attention() -> Build:
    return attending(lambda h, memory, p: F.general_attention(h, memory, None, p.c))


@kind
def scan_with_heads() -> Build:
    return attending(lambda h, memory, p: F.attention(h, memory, heads=4))


@kind
def recomputed_scan_with_attention() -> Build:
    return attending(lambda h, memory, p: F.attention(h, memory), recompute=3)


@kind
def scan_with_all_attentions() -> Build:
    """Several operators add to the gradient of one memory: at each step, or at last."""

    def attend(h: Any, memory: Any, p: Any) -> Any:
        c = F.additive_attention(h, memory, None, p.a) + F.attention(h, memory, heads=2)
        return F.attention(F.general_attention(c, memory, None, p.c), memory, F.tanh(memory))

    return attending(attend)


@kind
def scan_with_two_memories() -> Build:
    p = parameters(x=(HIDDEN, EMBED), h=(HIDDEN, HIDDEN), c=(HIDDEN, 2 * HIDDEN), a=(HIDDEN,))

    @db.cell
    def step(x: Any, h: Any, p: Any, memory: Any) -> Any:
        keys, values = memory
        c = F.attention(h, keys, values) + F.additive_attention(h, keys, values, p.a)
        h = F.tanh(F.linear(x, p.x) + F.linear(h, p.h) + F.linear(c, p.c))
        return h, h

    def build(sentence: Sentence) -> Made:
        memory = sentence.rows(HIDDEN, 1), sentence.rows(2 * HIDDEN, 2)
        return squares(db.scan(step, sentence.rows(), HIDDEN, p, memory, return_state=False))

    return build
