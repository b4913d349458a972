"""A tagger with a cell and a block of its own."""

from __future__ import annotations

from typing import NamedTuple, assert_type

import numpy as np
from numpy.typing import NDArray

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

Ids = NDArray[np.int64]


class Sentence(NamedTuple):
    words: Ids
    tags: Ids


def weights(rng: np.random.Generator, *shape: int) -> db.Parameter:
    return db.Parameter(rng.uniform(-0.1, 0.1, shape).astype("float32"))


class Unit(models.Module):
    """The weights of a cell along a sentence, and of a cell over a tree."""

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.W, self.U, self.b = (
            weights(rng, width, width),
            weights(rng, width, width),
            weights(rng, width),
        )

    def __call__(self, xs: db.Node) -> db.Node:
        ys, last = db.scan(gated, xs, init=self.b.size, params=self)
        assert_type(last, db.Node)
        return ys

    def states(self, xs: db.Node) -> tuple[db.Node, tuple[db.Node, db.Node]]:
        return db.scan(counted, xs, init=(self.b.size, self.b.size), params=self)


@db.cell
def gated(x: db.Node, h: db.Node, p: Unit) -> tuple[db.Node, db.Node]:
    gate = F.sigmoid(F.linear(x, p.W, p.b) + F.linear(h, p.U))
    h = (1 - gate) * h + gate * F.tanh(0.5 * x + p.b)
    return h, h


@db.cell
def counted(
    x: db.Node, state: tuple[db.Node, db.Node], p: Unit
) -> tuple[db.Node, tuple[db.Node, db.Node]]:
    h, total = state
    h = F.tanh(F.linear(x, p.W) - F.linear(h, p.U, p.b))
    return h, (h, total + h)


@db.cell
def joined(left: db.Node, right: db.Node, p: Unit) -> tuple[db.Node, db.Node]:
    c = F.linear(left, p.W) + F.linear(right, p.U, p.b)
    return F.tanh(c), c


class Attention(models.Module):
    def __init__(self, width: int, heads: int) -> None:
        self.norm, self.project = models.LayerNorm(width), models.Linear(width, 3 * width)
        self.merge, self.heads = models.Linear(width, width), heads

    @db.block
    def __call__(self, x: db.Node) -> db.Node:
        query, keys, values = F.chunk(self.project(self.norm(x)), 3)
        return x + self.merge(F.attention(query, keys, values, heads=self.heads))


@db.block
def scaled(x: db.Node, by: float = 0.5) -> db.Node:
    return by * x / 2 - 1


class Tagger(models.Module):
    def __init__(self, words: int, tags: int, width: int = 16) -> None:
        rng = np.random.default_rng(0)
        self.embed = models.Embedding(words, width, rng=rng)
        self.unit, self.attention = Unit(width, rng), Attention(width, heads=2)
        self.lstm = models.LSTM(width, width, bidirectional=True, rng=rng)
        self.project = models.Linear(2 * width, tags, rng=rng)

    def logits(self, graph: db.Graph, words: Ids) -> db.Node:
        xs = scaled(self.attention(self.unit(self.embed(graph, words))), by=0.7)
        return self.project(self.lstm(xs))

    def loss(self, graph: db.Graph, sentence: Sentence) -> db.Node:
        return F.cross_entropy(self.logits(graph, sentence.words), sentence.tags, reduction="sum")

    def root(self, graph: db.Graph, words: Ids) -> db.Node:
        """The root of a tree that grows to the left."""
        xs = self.embed(graph, words)
        root, states = xs[0], []
        for k in range(1, len(words)):
            states.append(joined(root, xs[k], self.unit))
            root, _ = states[-1]
        h, c = db.stack(states, like=(root, root))
        assert_type((h, c), tuple[db.Node, db.Node])
        return F.sum(h, dim=0) + root
