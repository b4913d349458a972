"""A task: an example's model and data, and the model's loss written for PyTorch as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import dynbatch as db
from dynbatch import models, train
from dynbatch.train.batching import epoch_order

Weights = Mapping[str, Tensor]
"""The model's parameters by name, as tensors that share their memory."""

Batch = Sequence[Any]
Batches = train.SentenceBatches | train.TokenBatches | train.PreparedBatches


class LikeLengths(train.TokenBatches[Any]):
    """Mini-batches of examples of like lengths, as PyTorch's users cut them to save padding.

    The shuffled examples are sorted in pools, and the mini-batches shuffled again. For tasks whose
    random mini-batches would have more than three cells for each token.
    """

    pool = 4096

    def indices(self, epoch: int) -> list[list[int]]:
        order = epoch_order(len(self.examples), self.seed, epoch)
        batches: list[list[int]] = []
        for first in range(0, len(order), self.pool):
            room = -1
            for index in sorted(order[first : first + self.pool], key=self.lengths.__getitem__):
                if self.lengths[index] > room:
                    batches.append([])
                    room = self.max_tokens
                batches[-1].append(int(index))
                room -= self.lengths[index]
        return [batches[number] for number in epoch_order(len(batches), self.seed, epoch)]


class Task(ABC):
    """One row of the table. Made anew, after `db.seed`, for each run.

    Attributes:
        name:    in the table and on the command line.
        data:    what it trains on, in a few words.
        example: the folder of `examples` whose model it is.
        model:   of the example.
        epochs, lr, clip: so many passes; the highest rate; the largest norm of the gradient.
        decay:   the weight decay of AdamW; None for Adam.
        packages: what the evaluation needs beside PyTorch, looked for before training.
    """

    name: ClassVar[str]
    data: ClassVar[str]
    example: ClassVar[str]
    clip: ClassVar[float] = 5.0
    decay: ClassVar[float | None] = None
    packages: ClassVar[tuple[str, ...]] = ()

    model: models.Module
    epochs: int
    lr: float

    def train_on(self, batches: Batches, options: Any) -> None:
        """Take these mini-batches, and epochs and rate of the example's options."""
        self._batches = batches
        self.epochs, self.lr = options.epochs, options.lr

    def batches(self, epoch: int) -> Iterable[Batch]:
        """The mini-batches of an epoch, the same on both sides."""
        return self._batches.epoch(epoch)

    @property
    def num_updates(self) -> int:
        """The mini-batches of all epochs."""
        return sum([self._batches.num_batches(epoch) for epoch in range(self.epochs)])

    def warmup_steps(self) -> int:
        """The updates in which the rate rises."""
        return self.num_updates // 10

    @abstractmethod
    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        """The loss of a mini-batch as the example writes it."""

    @abstractmethod
    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        """Compute that loss by PyTorch."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """The measures that the example prints of a trained model, the main one first."""


def dropped(x: Tensor, task: Task) -> Tensor:
    """Dropout with the probability of the model's own."""
    return torch.dropout(x, task.model.dropout.p, task.model.training)  # type: ignore[attr-defined]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """The linear map of a name, with its bias if it has one."""
    return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def padded(sequences: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Numbers (B, T), 0 where a sequence has ended, and lengths (B,)."""
    tensors = [torch.as_tensor(one) for one in sequences]
    lengths = torch.tensor([len(one) for one in tensors])
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True), lengths


def inside(lengths: Tensor, longest: int | None = None) -> Tensor:
    """Whether (B, T) is before the end of its sequence."""
    return torch.arange(longest or int(lengths.max())) < lengths[:, None]


def bi_lstm(
    x: Tensor, lengths: Tensor, weights: Weights, name: str, layers: int = 1,
    dropout: float = 0.0, training: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The outputs (B, T, 2H) of a bi-LSTM and its last h and c (2 layers, B, H), packed.

    A padded one would begin its backward direction in the padding: another function.
    """
    flat = [
        weights[f"{name}.{kind}_l{layer}{side}"]
        for layer in range(layers)
        for side in ("", "_reverse")
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    state = torch.zeros(2 * layers, len(lengths), flat[1].shape[1])
    outputs, h, c = torch.lstm(
        packed.data, packed.batch_sizes, (state, state), flat, True, layers, dropout, training, True
    )
    packed = PackedSequence(
        outputs, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
    )
    order = packed.unsorted_indices
    return pad_packed_sequence(packed, batch_first=True)[0], h[:, order], c[:, order]
