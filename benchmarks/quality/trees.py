"""The Tree-LSTMs of `examples.trees`; in PyTorch level by level, sorted by hand.

Counted from the root, what hangs from the nodes of one level is just the next level, so a level
reads no more than that: a table of all states would be copied at each level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, dropped, linear
from benchmarks.trees import TreeBatch, levels
from dynbatch import nodes as F
from dynbatch import train
from dynbatch.backend import Array
from dynbatch.tasks.training import sample
from dynbatch.text import Vocabulary
from dynbatch.train.batching import epoch_order
from examples.corpora import petrogold
from examples.corpora import syntax as functions
from examples.corpora.listops import draw
from examples.trees import listops, relations, syntax
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import TreeSettings, accuracy, loss


class OfTrees(Task):
    """The share of labels found in the trees of the test."""

    example = "trees"

    test: Sequence[Any]

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        total = F.sum([loss(graph, self.model, one) for one in batch])
        return total / sum([len(one.labels) for one in batch])

    def evaluate(self) -> dict[str, float]:
        return {"right, %": 100 * accuracy(self.model, self.test)}

    def train_on_trees(self, known: Sequence[Any], settings: TreeSettings) -> None:
        """Take mini-batches of these, and the rest of the settings."""
        self.train_on(train.SentenceBatches(known, settings.batch_size), settings)
        self.clip = settings.clip


class ListOps(OfTrees):
    """Nested lists of digits by their binary trees."""

    name = "trees"
    data = "ListOps, 10,000 expressions drawn, 3 epochs"

    def __init__(self) -> None:
        settings = listops.Settings()
        count = listops.NUM_TEST + settings.limit
        drawn = [listops.evaluation(one) for one in draw(count, settings.seed)]
        order = epoch_order(len(drawn), settings.seed, epoch=0).tolist()
        self.test = [drawn[index] for index in order[: listops.NUM_TEST]]
        rest = [drawn[index] for index in order[listops.NUM_TEST :]]
        self.model = listops.TreeEvaluator(settings.embed, settings.hidden)
        known = [one for one in rest if len(one.ids) <= listops.LONGEST_TRAINED]
        self.train_on_trees(known, settings)

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        sources = [one.ids for one in batch]
        nodes = [np.arange(one.num_nodes) for one in batch]
        by_depth = levels(TreeBatch(sources, nodes, [one.pairs for one in batch]))
        ids = torch.from_numpy(np.concatenate(sources)[by_depth.words])
        gates = _linear(weights["embed.weight"][ids], weights, ["weight_x"], "bias_x")
        i, o, u = gates.chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        leaves = zip(h.split(by_depth.num_words), c.split(by_depth.num_words), strict=True)
        h, c = next(leaves)  # the deepest level
        for order, (h_leaves, c_leaves) in zip(by_depth.orders, leaves, strict=True):
            gates = _linear(h.reshape(-1, 2 * h.shape[1]), weights, ["weight_left", "weight_right"])
            i, f_left, f_right, o, u = gates.chunk(5, 1)
            kept = torch.sigmoid(f_left) * c[::2] + torch.sigmoid(f_right) * c[1::2]
            c = torch.sigmoid(i) * torch.tanh(u) + kept
            places = torch.from_numpy(order)
            h = torch.cat([torch.sigmoid(o) * torch.tanh(c), h_leaves]).index_select(0, places)
            c = torch.cat([c, c_leaves]).index_select(0, places)
        labels = torch.tensor([int(one.labels[0]) for one in batch])
        return functional.cross_entropy(linear(h, weights, "project"), labels)


def _linear(x: Tensor, weights: Weights, names: Sequence[str], bias: str | None = "bias") -> Tensor:
    """A map by matrices of the Tree-LSTM, side by side, and a bias."""
    matrices = [weights[f"tree_lstm.{name}"] for name in names]
    matrix = torch.cat(matrices, 1) if len(matrices) > 1 else matrices[0]
    return functional.linear(x, matrix, None if bias is None else weights[f"tree_lstm.{bias}"])


class OfNodes(OfTrees):
    """Labels of some nodes of each tree, by a child-sum Tree-LSTM."""

    def train_on_nodes(
        self, known: Sequence[Any], sizes: Sequence[int], classes: int, settings: TreeSettings
    ) -> None:
        """Make the model, and take mini-batches of these trees."""
        sides = (settings.embed, settings.hidden, settings.dropout)
        self.model = NodeClassifier(sizes, classes, *sides)
        self.train_on_trees(known, settings)

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        levels = _Levels.of(batch)
        columns = np.concatenate([one.features for one in batch], 1)[:, levels.order]
        x, *others = [
            weights[f"embeddings.{number}.weight"][torch.from_numpy(column)]
            for number, column in enumerate(columns)
        ]
        x = dropped(sum(others, x), self)
        gates_x = _linear(x, weights, ["weight_x"]).split(levels.sizes)
        forget_x = _linear(x, weights, ["weight_f_x"], "bias_f").split(levels.sizes)
        i, o, u = gates_x[0].chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        states = [h]
        for gates, forget, parents in zip(gates_x[1:], forget_x[1:], levels.parents, strict=True):
            f = forget.index_select(0, parents) + _linear(h, weights, ["weight_f_h"], None)
            passed = torch.cat([h, torch.sigmoid(f) * c], 1)
            below = passed.new_zeros(len(gates), passed.shape[1]).index_add(0, parents, passed)
            total, kept = below.chunk(2, 1)
            i, o, u = (gates + _linear(total, weights, ["weight_h"], None)).chunk(3, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + kept
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        h = torch.cat([*states, weights["above_root"][None]])
        pairs = torch.cat([h.index_select(0, rows) for rows in levels.asked], 1)
        joined = dropped(torch.tanh(linear(pairs, weights, "join")), self)
        labels = torch.from_numpy(np.concatenate([one.labels for one in batch]))
        return functional.cross_entropy(linear(joined, weights, "project"), labels)


@dataclass(frozen=True)
class _Levels:
    """The nodes of a batch of trees by their depth, the deepest first.

    Attributes:
        order:   the nodes, tree by tree, in this order.
        sizes:   of the levels.
        parents: of each level but the last, places of its nodes' heads in the next one.
        asked:   places of the nodes with a label, and of their heads; the last is above the roots.
    """

    order: Array
    sizes: list[int]
    parents: list[Tensor]
    asked: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, batch: Sequence[LabelledTree]) -> _Levels:
        firsts = np.cumsum([0, *[one.num_nodes for one in batch]])
        pairs = [*zip(batch, firsts, strict=False)]
        heads = np.concatenate([np.where(one.heads < 0, -1, one.heads + k) for one, k in pairs])
        depths, above = np.zeros(len(heads), np.int64), heads
        while (inside := above >= 0).any():
            depths += inside
            above = np.where(inside, heads[above], -1)
        order = np.argsort(-depths, kind="stable")
        places = np.empty(len(order) + 1, np.int64)
        places[order], places[-1] = np.arange(len(order)), len(order)
        sizes = np.bincount(depths)[::-1].tolist()
        ends = np.cumsum(sizes)[:-1]
        parents = [
            torch.from_numpy(places[heads[nodes]] - end)
            for nodes, end in zip(np.split(order, ends), ends, strict=False)
        ]
        asked = np.concatenate([one.asked + k for one, k in pairs])
        rows = [torch.from_numpy(places[nodes]) for nodes in (asked, heads[asked])]
        return cls(order, sizes, parents, (rows[0], rows[1]))


class Relations(OfNodes):
    """The relation of each word to its head."""

    name = "relations"
    data = "PetroGold, 3,000 dependency trees, 3 epochs"

    def __init__(self) -> None:
        settings = relations.Settings()
        known, test = sample(petrogold.load("train"), settings), petrogold.load("test")
        words = Vocabulary.build([map(str.lower, one.words) for one in known], min_count=2)
        labels = Vocabulary.build([one.labels for one in known])
        trees, self.test = [
            [relations.labelled_tree(one, words, labels) for one in part] for part in (known, test)
        ]
        self.train_on_nodes(trees, (len(words), len(relations.SIDES)), len(labels), settings)


class Syntax(OfNodes):
    """The kinds of hidden nodes of Python's functions."""

    name = "syntax"
    data = "3,000 functions of Python's library, 3 epochs"

    def __init__(self) -> None:
        settings = syntax.Settings()
        known, test = sample(functions.load("train"), settings), functions.load("test")
        kinds, fields = [
            Vocabulary.build([getattr(one, side) for one in known]) for side in ("kinds", "fields")
        ]
        trees, self.test = [syntax.labelled_trees(part, kinds, fields) for part in (known, test)]
        self.train_on_nodes(trees, (len(kinds), len(fields)), len(kinds), settings)
