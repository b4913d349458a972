"""A class for some nodes of a tree, from a child-sum Tree-LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.backend import Array


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A tree of T nodes, of which n have a label to find.

    Args:
        features: (K, T) what is known of each node, as K ids.
        heads:    (T,) number of each node's head, -1 for the root.
        asked:    (n,) the nodes with a label.
        labels:   (n,) theirs.
    """

    features: Array
    heads: Array
    asked: Array
    labels: Array

    @property
    def num_nodes(self) -> int:
        return len(self.heads)


class NodeClassifier(models.Module):
    """Scores from the states of a node and of its head: what is below it, and what is beside it.

    Args:
        sizes:   entries of each feature's vocabulary; an embedding each, which are added up.
        classes: of the labels.
    """

    def __init__(
        self, sizes: Sequence[int], classes: int, embed: int, hidden: int, dropout: float = 0.0
    ) -> None:
        self.embeddings = [models.Embedding(size, embed, scale=0.1) for size in sizes]
        self.dropout = models.Dropout(dropout)
        self.tree_lstm = models.ChildSumTreeLSTM(embed, hidden)
        self.above_root = db.Parameter(np.zeros(hidden, np.float32))
        self.join = models.Linear(2 * hidden, hidden)
        self.project = models.Linear(hidden, classes)

    def scores(self, graph: db.Graph, tree: LabelledTree) -> Node:
        """(n, classes)."""
        xs, *others = [
            embedding(graph, ids)
            for embedding, ids in zip(self.embeddings, tree.features, strict=True)
        ]
        for other in others:
            xs = xs + other
        hs, _ = self.tree_lstm(self.dropout(xs), tree.heads)
        with_above = F.concat([hs, F.parameter(graph, self.above_root)], dim=0)
        heads = np.where(tree.heads < 0, tree.num_nodes, tree.heads)
        pairs = F.concat([with_above[tree.asked], with_above[heads[tree.asked]]])
        return self.project(self.dropout(F.tanh(self.join(pairs))))
