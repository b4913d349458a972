"""The binary Tree-LSTM of `examples.trees.listops`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, linear
from dynbatch import nodes as F
from dynbatch import train
from dynbatch.train.batching import epoch_order
from examples.corpora.listops import draw
from examples.trees.listops import (
    LONGEST_TRAINED,
    NUM_TEST,
    Settings,
    TreeEvaluator,
    evaluation,
)
from examples.trees.training import accuracy


class ListOps(Task):
    """Nested lists of digits by their trees; in PyTorch level by level, sorted by hand."""

    name = "trees"
    data = "ListOps, 10,000 expressions drawn, 3 epochs"

    def __init__(self) -> None:
        settings = Settings()
        drawn = [evaluation(one) for one in draw(NUM_TEST + settings.limit, settings.seed)]
        order = epoch_order(len(drawn), settings.seed, epoch=0).tolist()
        self._test = [drawn[index] for index in order[:NUM_TEST]]
        rest = [drawn[index] for index in order[NUM_TEST:]]
        known = [one for one in rest if len(one.ids) <= LONGEST_TRAINED]
        self.model = TreeEvaluator(settings.embed, settings.hidden)
        batches = train.SentenceBatches(known, settings.batch_size)
        self.train_on(batches, settings)
        self.clip = settings.clip

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        return F.mean([
            F.cross_entropy(self.model.scores(graph, one), one.labels, reduction="sum")
            for one in batch
        ])  # fmt: skip

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        ids = torch.cat([torch.from_numpy(one.ids) for one in batch])
        levels, rows = _levels(batch)
        x = weights["embed.weight"][ids]
        i, o, u = linear_of(x, weights, "weight_x", "bias_x").chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        for left, right in levels:
            gates = linear_of(h[left], weights, "weight_left", "bias")
            gates = gates + linear_of(h[right], weights, "weight_right")
            i, f_l, f_r, o, u = gates.chunk(5, 1)
            joined = torch.sigmoid(i) * torch.tanh(u)
            joined = joined + torch.sigmoid(f_l) * c[left] + torch.sigmoid(f_r) * c[right]
            h = torch.cat([h, torch.sigmoid(o) * torch.tanh(joined)])
            c = torch.cat([c, joined])
        scores = linear(h[rows], weights, "project")
        return functional.cross_entropy(scores, torch.tensor([int(one.labels[0]) for one in batch]))

    def evaluate(self) -> dict[str, float]:
        return {"right, %": 100 * accuracy(self.model, self._test)}


def linear_of(x: Tensor, weights: Weights, name: str, bias: str | None = None) -> Tensor:
    """A linear map by a matrix, and perhaps a bias, of the Tree-LSTM."""
    vector = None if bias is None else weights[f"tree_lstm.{bias}"]
    return functional.linear(x, weights[f"tree_lstm.{name}"], vector)


def _levels(batch: Batch) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """The rows of the children of each level of all trees, and the rows of their roots.

    Leaves have the first rows, sentence by sentence; each level's nodes come behind.
    """
    rows: list[list[int]] = []
    heights: list[list[int]] = []
    first = 0
    for one in batch:
        rows.append([*range(first, first + len(one.ids))])
        heights.append([0] * len(one.ids))
        first += len(one.ids)
        for left, right in one.pairs:
            heights[-1].append(1 + max(heights[-1][left], heights[-1][right]))
            rows[-1].append(-1)
    levels = []
    for level in range(1, 1 + max([max(each) for each in heights])):
        left, right = [], []
        for one, of_tree, heights_of_tree in zip(batch, rows, heights, strict=True):
            for number, (a, b) in enumerate(one.pairs, len(one.ids)):
                if heights_of_tree[number] == level:
                    left.append(of_tree[a])
                    right.append(of_tree[b])
                    of_tree[number] = first
                    first += 1
        levels.append((torch.tensor(left), torch.tensor(right)))
    return levels, torch.tensor([each[-1] for each in rows])
