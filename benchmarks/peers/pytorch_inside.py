"""The node-by-node Tree-LSTM in PyTorch, its trees run by dynbatch: all else is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import dynbatch as db
from benchmarks.networks import Array, TreeSizes
from benchmarks.peers.pytorch import PyTorchContender, tensors
from benchmarks.peers.pytorch_tree import TreeLSTM
from benchmarks.trees import Tree, TreeBatch
from dynbatch import nodes as F
from dynbatch.torch import Batched, Packed


@db.cell
def of_word(x: Any, p: Any) -> Any:
    """h and c of a word."""
    i, o, u = F.chunk(F.linear(x, p.leaf.weight, p.leaf.bias), 3)
    c = F.sigmoid(i) * F.tanh(u)
    return F.sigmoid(o) * F.tanh(c), c


@db.cell
def of_pair(left: Any, right: Any, p: Any) -> Any:
    """h and c of a parent from its children's."""
    (h_left, c_left), (h_right, c_right) = left, right
    gates = F.linear(F.concat([h_left, h_right]), p.compose.weight, p.compose.bias)
    i, o, f_left, f_right, u = F.chunk(gates, 5)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f_left) * c_left + F.sigmoid(f_right) * c_right
    return F.sigmoid(o) * F.tanh(c), c


def all_states(graph: db.Graph, p: Any, tree: Tree, x: Any) -> Any:
    """h of all nodes of one tree, (2T - 1, H), from its words' embeddings, (T, E)."""
    states = [of_word(x[t], p) for t in range(x.rows)]
    for left, right in tree:
        states.append(of_pair(states[left], states[right], p))
    h, _ = db.stack(states)
    return h


class InsideTree(PyTorchContender):
    """PyTorch's embedding, output layer, loss and Adam around trees that dynbatch runs."""

    model: TreeLSTM

    def __init__(self, sizes: TreeSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-dynbatch", TreeLSTM(sizes), values, device)
        self._trees = Batched(all_states, self.model)

    def arrange(self, batch: TreeBatch) -> tuple[Tensor, list[int], list[Tree], Tensor]:
        words, classes = torch.cat(tensors(batch.sources)), torch.cat(tensors(batch.targets))
        return words, [len(source) for source in batch.sources], batch.trees, classes

    def forward(self, prepared: tuple[Tensor, list[int], list[Tree], Tensor]) -> Tensor:
        words, lengths, trees, classes = prepared
        states = self._trees(trees, Packed(self.model.embedding(words), lengths))
        logits = self.model.output(torch.cat(states))
        return cross_entropy(logits, classes, reduction="sum") / len(trees)
