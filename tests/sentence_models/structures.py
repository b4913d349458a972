"""Trees, calls, blocks, graphs and drivers; losses of structures."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from tests.sentence_models.sentence import (
    EMBED,
    HIDDEN,
    TAGS,
    Build,
    Made,
    Sentence,
    kind,
    parameters,
    squares,
)


@kind
def tree() -> Build:
    network = models.BinaryTreeLSTM(EMBED, HIDDEN, rng=1)

    def build(sentence: Sentence) -> Made:
        pairs = [(2 * k, 2 * k + 1) for k in range(len(sentence.ids) - 1)]
        hs, root = network(sentence.rows(), np.array(pairs, np.int64).reshape(-1, 2))
        return hs, F.sum(hs * hs) + F.sum(root)

    return build


@kind
def child_sum_tree() -> Build:
    network = models.ChildSumTreeLSTM(EMBED, HIDDEN, rng=1)

    def build(sentence: Sentence) -> Made:
        heads = [(k - 1) // 3 if k else -1 for k in range(len(sentence.ids))]
        hs, root = network(sentence.rows(), heads)
        return hs, F.sum(hs * hs) + F.sum(root)

    return build


@kind
def calls() -> Build:
    """A cell called word by word, which attends to a memory."""
    p = parameters(x=(HIDDEN, EMBED), h=(HIDDEN, HIDDEN), c=(HIDDEN, HIDDEN))

    @db.cell
    def step(x: Any, h: Any, memory: Any, p: Any) -> Any:
        c = F.attention(h, memory)
        return F.tanh(F.linear(x, p.x) + F.linear(h, p.h) + F.linear(c, p.c))

    def build(sentence: Sentence) -> Made:
        x, memory, h = sentence.rows(), sentence.rows(HIDDEN, 1), sentence.vector()
        hs = []
        for t in range(len(sentence.ids)):
            h = step(x[t], h, memory, p)
            hs.append(h)
        return squares(db.stack(hs))

    return build


@kind
def block() -> Build:
    """Attention written out: its products have a width that is the sentence's length."""
    p = parameters(q=(HIDDEN, EMBED), k=(HIDDEN, EMBED), v=(HIDDEN, EMBED))

    @db.block
    def own_attention(x: Any, p: Any) -> Any:
        scores = F.linear(x, p.q) @ F.transpose(F.linear(x, p.k))
        return F.softmax(scores * 0.2) @ F.linear(x, p.v)

    return lambda sentence: squares(own_attention(sentence.rows(), p))


@kind
def graph_rounds() -> Build:
    """Three rounds of messages from each word to its neighbours, next and second next."""
    p = parameters(own=(HIDDEN, HIDDEN), other=(HIDDEN, HIDDEN))

    def build(sentence: Sentence) -> Made:
        x, count = sentence.rows(HIDDEN), len(sentence.ids)
        near = [[j for j in range(count) if 0 < abs(i - j) < 3] for i in range(count)]
        lengths, ids = [len(each) for each in near], [j for each in near for j in each]
        for _ in range(3):
            messages = F.segment_sum(F.gather_rows(F.linear(x, p.other), ids), lengths)
            x = F.tanh(F.linear(x, p.own) + messages)
        return squares(x)

    return build


@kind
def driver() -> Build:
    """A walk of as many steps as its values say."""
    p = parameters(h=(HIDDEN, HIDDEN), x=(HIDDEN, EMBED))

    def build(sentence: Sentence) -> Generator[Any, Any, Made]:
        x, h = F.linear(sentence.rows(), p.x), sentence.vector()
        for t in range(len(sentence.ids)):
            h = F.tanh(F.linear(h, p.h) + x[t]).keep()
            if (yield h)[0] > 0.7:
                break
        return squares(h)

    return build


@kind
def crf() -> Build:
    layer, tags = models.Linear(EMBED, TAGS, rng=1), models.CRF(TAGS, rng=2)

    def build(sentence: Sentence) -> Made:
        y = layer(sentence.rows())
        return y, tags.loss(y, sentence.ids % TAGS)

    return build


@kind
def biaffine() -> Build:
    parser = models.BiaffineParser(EMBED, TAGS, arcs=HIDDEN, labels=18, rng=1)

    def build(sentence: Sentence) -> Made:
        heads = np.arange(len(sentence.ids))  # each word's is the one before it
        loss = parser.loss(sentence.rows(), heads, sentence.ids % TAGS)
        return loss, loss

    return build


@kind
def pointer() -> Build:
    layer = models.Linear(EMBED, HIDDEN, rng=1)

    def build(sentence: Sentence) -> Made:
        queries, keys = layer(sentence.rows(every=2)), layer(sentence.rows(EMBED, 1))
        targets = sentence.ids[::2] % len(sentence.ids)
        return queries, F.pointer_loss(queries, keys, targets, reduction="sum")

    return build
