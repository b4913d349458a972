"""The binary Tree-LSTM in PyTorch: batched by hand, level by level, and node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.networks import Array, TreeSizes
from benchmarks.peers.pytorch import PyTorchContender, tensors
from benchmarks.trees import Levels, Tree, TreeBatch, levels


class TreeLSTM(nn.Module):
    """The network of `TreeSizes`."""

    def __init__(self, sizes: TreeSizes) -> None:
        super().__init__()
        hidden = self.hidden = sizes.hidden
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.leaf = nn.Linear(sizes.embedding, 3 * hidden)
        self.compose = nn.Linear(2 * hidden, 5 * hidden)
        self.output = nn.Linear(hidden, sizes.classes)

    def of_words(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """h and c of words from their ids: (N,) -> (N, H) each; one word as well, () -> (H,)."""
        gates = self.leaf(self.embedding(words))
        i, o = torch.sigmoid(gates[..., : 2 * self.hidden]).chunk(2, -1)
        c = i * torch.tanh(gates[..., 2 * self.hidden :])
        return o * torch.tanh(c), c

    def of_pairs(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """h and c of parents, from both children's side by side: (N, 2H) -> (N, H) each."""
        hidden = self.hidden
        gates = self.compose(h)
        i, o, f = torch.sigmoid(gates[..., : 4 * hidden]).split([hidden, hidden, 2 * hidden], -1)
        left, right = (f * c).chunk(2, -1)
        c = torch.addcmul(left + right, i, torch.tanh(gates[..., 4 * hidden :]))
        return o * torch.tanh(c), c


@dataclass(frozen=True)
class PreparedLevels:
    """A batch for `LevelTree`; see `trees.Levels`."""

    words: Tensor
    num_words: list[int]
    orders: tuple[Tensor, ...]
    classes: Tensor
    num_sentences: int


class LevelTree(PyTorchContender):
    """Level by level: one product for all words, then one for each depth, the deepest first.

    Counted from the root, the children of all inner nodes of a depth are just the next depth's
    nodes, side by side: a level's input is a view. All that is copied between levels is a level,
    where words and inner nodes merge. A table of all states would cost more: each level would fill
    and add up its gradient anew.
    """

    model: TreeLSTM

    def __init__(self, sizes: TreeSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-levels", TreeLSTM(sizes), values, device)

    def arrange(self, batch: TreeBatch) -> PreparedLevels:
        found: Levels = levels(batch)
        return PreparedLevels(
            words=torch.from_numpy(np.concatenate(batch.sources)[found.words]),
            num_words=found.num_words,
            orders=tuple(tensors(found.orders)),
            classes=torch.from_numpy(np.concatenate(batch.targets)[found.nodes]),
            num_sentences=batch.num_sentences,
        )

    def forward(self, prepared: PreparedLevels) -> Tensor:
        model = self.model
        h_words, c_words = model.of_words(prepared.words)
        states = zip(
            h_words.split(prepared.num_words), c_words.split(prepared.num_words), strict=True
        )
        h, c = next(states)  # the deepest level is of words alone
        found = [h_words]
        for order, (h_level, c_level) in zip(prepared.orders, states, strict=True):
            h, c = model.of_pairs(h.view(-1, 2 * model.hidden), c.view(-1, 2 * model.hidden))
            found.append(h)
            h = torch.cat([h, h_level]).index_select(0, order)
            c = torch.cat([c, c_level]).index_select(0, order)
        total = cross_entropy(model.output(torch.cat(found)), prepared.classes, reduction="sum")
        return total / prepared.num_sentences


class NodeTree(PyTorchContender):
    """Node by node, as it is written without a thought of speed; words and loss once a sentence."""

    model: TreeLSTM

    def __init__(self, sizes: TreeSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        super().__init__("pytorch-nodes", TreeLSTM(sizes), values, device)

    def arrange(
        self, batch: TreeBatch
    ) -> tuple[tuple[Tensor, ...], list[Tree], tuple[Tensor, ...]]:
        return tuple(tensors(batch.sources)), batch.trees, tuple(tensors(batch.targets))

    def forward(
        self, prepared: tuple[tuple[Tensor, ...], list[Tree], tuple[Tensor, ...]]
    ) -> Tensor:
        losses = [self._sentence_loss(*sentence) for sentence in zip(*prepared, strict=True)]
        return torch.stack(losses).mean()

    def _sentence_loss(self, words: Tensor, tree: Tree, classes: Tensor) -> Tensor:
        model = self.model
        states = [model.of_words(word) for word in words]
        for left, right in tree:
            (h_left, c_left), (h_right, c_right) = states[left], states[right]
            states.append(
                model.of_pairs(torch.cat([h_left, h_right]), torch.cat([c_left, c_right]))
            )
        logits = model.output(torch.stack([h for h, _ in states]))
        return cross_entropy(logits, classes, reduction="sum")
