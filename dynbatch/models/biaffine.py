"""Biaffine scores of dependency arcs and their labels, for one sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import sizes
from dynbatch.indexing import repeat
from dynbatch.models.initial import Rng, generator, normal
from dynbatch.models.layers import Dropout, Linear
from dynbatch.models.module import Module
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter


class BiaffineArcs(Module):
    """A score for each dependent i and head j: s_ij = (U d_i + u) · h_j.

    d (T, D), h (S, D) -> (T, S). The bias u says how much a word likes to be a head.

    Args:
        features: D.

    Parameters: weight (D, D), bias (D,), at first 0: every head is as likely as another.
    Source: Dozat & Manning 2017, arXiv:1611.01734, equation 6.
    """

    def __init__(self, features: int) -> None:
        sizes(self, features=features)
        self.weight = Parameter(np.zeros((features, features), np.float32))
        self.bias = Parameter(np.zeros(features, np.float32))

    def turn(self, dependents: Node) -> Node:
        """U d_i + u, whose products with the heads are the scores."""
        return F.linear(dependents, self.weight, self.bias)

    def __call__(self, dependents: Node, heads: Node) -> Node:
        return self.turn(dependents) @ F.transpose(heads)


class BiaffineLabels(Module):
    """Scores of K labels for each pair of rows: s_ik = d_i · U_k h_i + w_k · [d_i; h_i] + b_k.

    d (T, D), h (T, D) -> (T, K): row i of h is the head of row i of d.

    Args:
        features:   D.
        num_labels: K.
        rng:        generator or seed of the initial values.

    Parameters: bilinear.weight (K · D, D), the U_k one below the other; linear.weight (K, 2 D) and
        linear.bias (K,).
    Source: Dozat & Manning 2017, arXiv:1611.01734, equation 3.
    """

    def __init__(self, features: int, num_labels: int, *, rng: Rng = None) -> None:
        rng = generator(rng)
        sizes(self, features=features, num_labels=num_labels)
        self.num_labels = num_labels
        self.bilinear = Linear(features, num_labels * features, bias=False, rng=rng)
        self.linear = Linear(2 * features, num_labels, rng=rng)

    def __call__(self, dependents: Node, heads: Node) -> Node:
        tokens, features, labels = dependents.rows, dependents.width, self.num_labels
        turned = F.reshape(self.bilinear(dependents), (tokens * labels, features))
        beside = F.gather_rows(heads, repeat(np.arange(tokens), labels))
        products = F.reshape(F.sum(turned * beside, dim=-1), (tokens, labels))
        return products + self.linear(F.concat([dependents, heads]))


class BiaffineParser(Module):
    """The upper part of a graph-based dependency parser: from states of words to arcs and labels.

    Each word is projected four ways, as dependent and as head, for arcs and for labels, and the
    pairs are scored. A separate vector stands for the root.

    Args:
        states:     features of a word's state, such as the outputs of a bi-LSTM.
        num_labels: K.
        arcs:       features of a word for arcs.
        labels:     features of a word for labels.
        dropout:    of the projections.
        rng:        generator or seed of the initial values.

    Source: Dozat & Manning 2017, arXiv:1611.01734. Ours has a learned vector for the root where
        theirs has a word before the sentence.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> parser = models.BiaffineParser(6, num_labels=3)
        >>> with db.Graph() as graph:
        ...     states = F.constant(graph, 1.0, (4, 6))
        ...     parser.arcs(states).shape, parser.labels(states, [2, 0, 2, 3]).shape
        ((4, 5), (4, 3))
    """

    def __init__(
        self, states: int, num_labels: int, arcs: int = 100, labels: int = 50,
        dropout: float = 0.0, *, rng: Rng = None,
    ) -> None:  # fmt: skip
        rng = generator(rng)
        sizes(self, states=states, num_labels=num_labels, arcs=arcs, labels=labels)
        self.root = normal(rng, (states,), 0.1)
        self.arc_dependent, self.arc_head = [Linear(states, arcs, rng=rng) for _ in range(2)]
        self.label_dependent, self.label_head = [Linear(states, labels, rng=rng) for _ in range(2)]
        self.dropout = Dropout(dropout)
        self.arc_scores = BiaffineArcs(arcs)
        self.label_scores = BiaffineLabels(labels, num_labels, rng=rng)

    def arcs(self, states: Node) -> Node:
        """Scores (T, T + 1) of each word's head: column 0 for the root, j + 1 for word j.

        Args:
            states: (T, states), T > 0.
        """
        return self.arc_scores(*self._arc_sides(states))

    def labels(self, states: Node, heads: ArrayLike) -> Node:
        """Scores (T, K) of the labels of the arcs to given heads.

        Args:
            heads: (T,) columns of `arcs`: 0 for the root, j + 1 for word j.
        """
        rows = F.gather_rows(self._with_root(states), as_ids("BiaffineParser.labels", heads))
        projected = self._project(self.label_head, rows)
        return self.label_scores(self._project(self.label_dependent, states), projected)

    def loss(self, states: Node, heads: ArrayLike, labels: ArrayLike) -> Node:
        """Negative log-likelihood of one sentence's heads, and of its labels given these, summed.

        Args:
            states: (T, states), T > 0.
            heads:  (T,) columns of `arcs`.
            labels: (T,) numbers below K.
        """
        dependents, candidates = self._arc_sides(states)
        turned = self.arc_scores.turn(dependents)
        arcs = F.pointer_loss(turned, candidates, heads, reduction="sum")
        return arcs + F.cross_entropy(self.labels(states, heads), labels, reduction="sum")

    def _arc_sides(self, states: Node) -> tuple[Node, Node]:
        heads = self._project(self.arc_head, self._with_root(states))
        return self._project(self.arc_dependent, states), heads

    def _with_root(self, states: Node) -> Node:
        root = F.unsqueeze(F.parameter(states.graph, self.root), 0)
        return F.concat([root, states], dim=0)

    def _project(self, layer: Linear, states: Node) -> Node:
        return self.dropout(F.leaky_relu(layer(states), 0.1))
