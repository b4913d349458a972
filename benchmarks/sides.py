"""A model of dynbatch that one or several processes train: what `benchmarks.parallel` compares."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.networks import LEARNING_RATE
from benchmarks.workloads.contender import DynbatchContender
from dynbatch import nodes as F
from dynbatch import optim, parallel
from dynbatch.testing.precision import dense_gradient


class Step(NamedTuple):
    """Seconds of the parts of a training step in one process."""

    graph: float
    exchange: float
    update: float


class Side:
    """A model that is trained by the processes of a communicator.

    Args:
        cost: cuts mini-batches into shards; by default into equally many tokens.
        cut:  the processes for which they are cut; by default the same.
    """

    def __init__(
        self, ours: DynbatchContender, communicator: parallel.Communicator,
        cost: parallel.Cost | None = None, cut: parallel.Communicator | None = None,
    ) -> None:  # fmt: skip
        self._ours = ours
        self._communicator = communicator
        self._cost = cost or parallel.Cost()
        self._cut = cut or communicator
        self._adam = optim.Adam(ours.parameters(), lr=LEARNING_RATE)
        self.steps: list[Step] = []

    def train(self, batch: Batch) -> float:
        """Seconds of one training step with this process's shard of a mini-batch."""
        begun = time.perf_counter()
        ran, summed = self.differentiate(batch)
        self._adam.step()
        end = time.perf_counter()
        self.steps.append(Step(ran - begun, summed - ran, end - summed))
        return end - begun

    def gradients(self, batch: Batch) -> list[Any]:
        """The gradients of a mini-batch, dense; no update."""
        self.differentiate(batch)
        found = [dense_gradient(parameter) for parameter in self._ours.parameters()]
        self.forget()
        return found

    def forget(self) -> None:
        """Leave no gradients."""
        self._adam.zero_grad()

    def weights(self) -> list[Any]:
        """Copies of all parameters."""
        return [parameter.numpy() for parameter in self._ours.parameters()]

    def differentiate(self, batch: Batch) -> tuple[float, float]:
        """Sum the gradients of all shards; returns when this one's were there, and the sums."""
        lengths = [len(words) for words in batch.sources]
        shard = self._cost.shards(lengths, self._cut.size)[self._cut.rank]
        with db.Graph() as graph:
            losses = [
                self._ours.sentence_loss(graph, batch.sources[k], batch.targets[k]) for k in shard
            ]
            if losses:
                graph.backward(F.sum(losses) / batch.num_sentences)
        ran = time.perf_counter()
        parallel.sum_gradients(self._communicator, self._adam)
        return ran, time.perf_counter()


class Counted:
    """A transport that counts what is sent through it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.exchanges = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(
        self, sent: Sequence[Any], received: Sequence[Any], is_of_all: bool = True
    ) -> None:
        """Count an exchange, and make it."""
        self.exchanges += 1
        self.bytes += sum([each.nbytes for each in sent if each is not None])
        self._transport.exchange(sent, received, is_of_all)
