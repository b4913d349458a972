"""A GPT: a Transformer that predicts each token of one sentence from those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.parameter import Array
from examples.language_model.data import MARK, Piece


class Block(models.Module):
    """One layer, with the norms before attention and before the two linear maps."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        self.attention_norm = models.LayerNorm(width)
        self.project = models.Linear(width, 3 * width)
        self.merge = models.Linear(width, width)
        self.inner_norm = models.LayerNorm(width)
        self.expand = models.Linear(width, 4 * width)
        self.contract = models.Linear(4 * width, width)
        self.dropout = models.Dropout(dropout)
        self.heads = heads

    def __call__(self, x: Node) -> Node:
        query, keys, values = F.chunk(self.project(self.attention_norm(x)), 3)
        seen = F.attention(query, keys, values, causal=True, heads=self.heads)
        x = x + self.dropout(self.merge(seen))
        return x + self.dropout(self.contract(F.gelu(self.expand(self.inner_norm(x)))))


class LanguageModel(models.Module):
    """Vectors of tokens and of their places, layers, and scores of each next token.

    Args:
        num_tokens:    different tokens.
        longest:       most tokens that it reads of a sentence.
        width:         features of a token; the heads divide it.
        layers, heads: of the Transformer.
        dropout:       of its parts' results, and of the vectors it begins with.

    The table of tokens also gives the scores: its rows times the last layer's features.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
    """

    def __init__(
        self, num_tokens: int, longest: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        self.tokens = models.Embedding(num_tokens, width, scale=0.02)
        self.places = models.Embedding(longest, width, scale=0.02)
        self.dropout = models.Dropout(dropout)
        self.blocks = [Block(width, heads, dropout) for _ in range(layers)]
        self.norm = models.LayerNorm(width)

    def features(self, graph: db.Graph, ids: Array) -> Node:
        """What the layers make of a sentence, (T, width)."""
        x = self.dropout(self.tokens(graph, ids) + self.places(graph, np.arange(ids.size)))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def scores(self, features: Node) -> Node:
        """Scores of all tokens to come next, (T, num_tokens)."""
        return F.linear(features, self.tokens.weight)

    def loss(self, graph: db.Graph, piece: Piece) -> Node:
        """Cross-entropy in nats, summed over what the piece predicts."""
        x = self.features(graph, piece.ids[:-1])[piece.context :]
        return F.cross_entropy(self.scores(x), piece.ids[1 + piece.context :], reduction="sum")


def sample(
    model: LanguageModel, count: int, length: int, rng: np.random.Generator
) -> list[Sequence[int]]:
    """Documents that the model makes up, side by side, each of at most `length` tokens.

    Each token is drawn from the model's distribution, and each time the whole document is read
    again, or what it looks back to: for some lines after an epoch, not for generating in earnest.
    """
    longest = model.places.weight.shape[0]
    found: list[list[int]] = [[MARK] for _ in range(count)]
    live = found
    for _ in range(length):
        with db.Graph(model.tokens.weight.device, grad=False) as graph:
            last = [model.features(graph, np.array(ids[-longest:]))[-1] for ids in live]
            scores = graph.values([model.scores(x) for x in last])
        for ids, each in zip(live, scores, strict=True):
            noise = rng.gumbel(size=each.size)
            ids.append(int(np.argmax(each + noise)))  # a draw from softmax(each)
        live = [ids for ids in live if ids[-1] != MARK]
        if not live:
            break
    return [[token for token in ids if token != MARK] for ids in found]
