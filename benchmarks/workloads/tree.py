"""A binary Tree-LSTM in dynbatch: a cell for words, a cell for pairs, called node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.networks import Array, TreeSizes
from benchmarks.trees import Tree, TreeBatch
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import models
from dynbatch import nodes as F


@db.cell
def leaf(x: Any, p: Any) -> Any:
    """State (h, c) of a word."""
    i, o, u = F.chunk(p.leaf(x), 3)
    c = F.sigmoid(i) * F.tanh(u)
    return F.sigmoid(o) * F.tanh(c), c


@db.cell
def compose(left: Any, right: Any, p: Any) -> Any:
    """State (h, c) of an inner node from those of its children."""
    (h_left, c_left), (h_right, c_right) = left, right
    i, o, f_left, f_right, u = F.chunk(p.left(h_left) + p.right(h_right), 5)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f_left) * c_left + F.sigmoid(f_right) * c_right
    return F.sigmoid(o) * F.tanh(c), c


class TreeLSTM(models.Module):
    """Classes of all nodes of one sentence's tree."""

    def __init__(self, sizes: TreeSizes) -> None:
        hidden = sizes.hidden
        self.embedding = models.Embedding(sizes.vocabulary, sizes.embedding)
        self.leaf = models.Linear(sizes.embedding, 3 * hidden)
        self.left = models.Linear(hidden, 5 * hidden)
        self.right = models.Linear(hidden, 5 * hidden, bias=False)
        self.output = models.Linear(hidden, sizes.classes)

    def loss(self, graph: db.Graph, ids: Array, tree: Tree, classes: Array) -> db.Node:
        """Cross-entropy summed over the nodes."""
        words = self.embedding(graph, ids)
        h, _ = db.stack(compose.tree(leaf.each(words, self), tree, self))
        logits = self.output(h)
        return F.cross_entropy(logits, classes, reduction="sum")


class DynbatchTree(DynbatchContender):
    """The Tree-LSTM as a user writes it."""

    def __init__(self, sizes: TreeSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        self._model = TreeLSTM(sizes)
        load_values(self._model, to_dynbatch(values))
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, *sentence: Any) -> db.Node:
        return self._model.loss(graph, *sentence)

    def num_cells(self, batch: TreeBatch) -> int:
        return batch.num_nodes


def to_dynbatch(values: Mapping[str, Array]) -> dict[str, Array]:
    """The values by the model's names: one matrix for each child."""
    found = dict(values)
    left, right = np.split(found.pop("compose.weight"), 2, axis=1)
    bias = found.pop("compose.bias")
    return {**found, "left.weight": left, "left.bias": bias, "right.weight": right}
