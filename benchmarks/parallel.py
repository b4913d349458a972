"""Processes of one thread beside one: `python -m benchmarks.parallel [tagger|transformer]`.

Training steps on whole mini-batches, in turn by one process and by all of them, each on its shard:
graph, forward, backward, sum of gradients, Adam. Both sides begin with the same parameters and are
in the same processes: whoever has no turn waits, without work. The time of a step together is that
of the process which is last. Beside the times stands what the sum costs: exchanges, bytes that a
process sends, and its share of the step, in which it also waits for the others' shards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.networks import LEARNING_RATE, initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.contender import DynbatchContender
from dynbatch import nodes as F
from dynbatch import optim, parallel
from dynbatch.parallel.launcher import launch
from dynbatch.testing.precision import dense_gradient

MOST_APART = 1e-5  # of the gradients, of the largest
CHOICES = ("tagger", "transformer")
TURN = 4  # steps that a side makes before the other one: who has waited begins with cold caches


class Step(NamedTuple):
    """Seconds of a training step in one process, and of its parts."""

    whole: float
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

    def train(self, batch: Batch) -> Step:
        """One training step with this process's shard of a mini-batch."""
        begun = time.perf_counter()
        ran, summed = self.differentiate(batch)
        self._adam.step()
        end = time.perf_counter()
        return Step(end - begun, ran - begun, summed - ran, end - summed)

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

    def exchange(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """Count an exchange, and make it."""
        self.exchanges += 1
        self.bytes += sum([each.nbytes for each in sent if each is not None])
        self._transport.exchange(sent, received)


def measure(communicator: parallel.Communicator, name: str, rounds: int, seed: int) -> Any:
    """Times and counts of one workload; on all ranks.

    Raises:
        ArithmeticError: both sides do not have the same gradients of the first mini-batch.
    """
    rng = np.random.default_rng(seed)
    workload = WORKLOADS[name]
    values = initial_values(workload.sizes, rng)
    by_itself = parallel.Communicator()
    alone = Side(workload.ours(workload.sizes, values, "cpu"), by_itself)
    corpus = workload.corpus(workload.sigma)
    cost = None
    if communicator.rank == 0:
        cost = cost_of(alone, corpus.random_batches(rng, 8, workload.batch), communicator.size)
    cost = communicator.broadcast_object(cost)
    together = Side(workload.ours(workload.sizes, values, "cpu"), communicator, cost)
    apart = Side(workload.ours(workload.sizes, values, "cpu"), by_itself, cost, communicator)
    rng = np.random.default_rng(seed + 1)
    batches = corpus.random_batches(rng, TURN * (rounds + 1), workload.batch)
    steps: list[Any] = []
    counted = communicator._host = Counted(communicator._host)
    exchanges, sent = 0, 0
    error = difference(together.gradients(batches[0]), alone.gradients(batches[0]))
    if error > MOST_APART:
        raise ArithmeticError(f"{name}: the gradients differ by {error:.1e} of the largest")
    for begin in range(0, len(batches), TURN):
        turn = batches[begin : begin + TURN]
        is_first = communicator.rank == 0
        seconds = [alone.train(batch).whole if is_first else 0.0 for batch in turn]
        communicator.barrier()
        silent = [apart.train(batch).whole for batch in turn]
        communicator.barrier()
        before = counted.exchanges, counted.bytes
        shards = [together.train(batch) for batch in turn]
        exchanges = (counted.exchanges - before[0]) // len(turn)
        sent = (counted.bytes - before[1]) // len(turn)
        measured = list(zip(seconds, silent, shards, strict=True))
        steps += zip(*communicator.gather_objects(measured), strict=True)
    found = summary(steps[TURN:], exchanges, sent)  # the first turn is not counted
    later = difference(together.weights(), alone.weights()) if communicator.rank == 0 else 0.0
    return {**found, "gradients_differ": error, "parameters_differ": later}


def cost_of(side: Side, batches: Sequence[Batch], size: int) -> parallel.Cost:
    """The cost of shards of mini-batches that are cut for so many processes, by timing some."""
    sentences = [sentence for batch in batches for sentence in batch.sentences()]

    def differentiate(shard: Sequence[Any]) -> None:
        sources, targets = zip(*shard, strict=True)
        side.differentiate(Batch(list(sources), list(targets)))
        side.forget()

    lengths = [len(words) for words, _ in sentences]
    half = batches[0].num_sentences // size
    return parallel.Cost.measured(differentiate, sentences, lengths, half)


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of arrays, as a part of the largest number."""
    most = max([float(np.abs(x - y).max()) for x, y in zip(found, wanted, strict=True)])
    return most / max([float(np.abs(y).max()) for y in wanted])


def summary(steps: Sequence[Any], exchanges: int, sent: int) -> dict[str, Any]:
    """Medians, in milliseconds.

    Args:
        steps: of each mini-batch (seconds alone, seconds side by side, `Step`) of each rank.
    """
    alone = [1e3 * ranks[0][0] for ranks in steps]
    silent = [1e3 * max([seconds for _, seconds, _ in ranks]) for ranks in steps]
    last = [1e3 * max([step.whole for *_, step in ranks]) for ranks in steps]
    each_step = [step for ranks in steps for *_, step in ranks]
    medians = {
        part: round(1e3 * statistics.median([getattr(step, part) for step in each_step]), 3)
        for part in ("graph", "exchange", "update")
    }
    return {
        "alone_ms": round(statistics.median(alone), 3),
        "side_by_side_ms": round(statistics.median(silent), 3),
        "together_ms": round(statistics.median(last), 3),
        "times_as_fast": round(statistics.median(alone) / statistics.median(last), 3),
        "ms_of_parts": medians,
        "exchanges": exchanges,
        "bytes_sent": sent,
    }


def work(options: argparse.Namespace) -> None:
    """Measure, as one of the ranks; the first one prints."""
    db.set_num_threads(1)
    with parallel.connect() as communicator:
        found: dict[str, Any] = {
            name: measure(communicator, name, options.rounds, options.seed)
            for name in options.workloads or CHOICES
        }
        if communicator.rank == 0:
            show(as_text(found, communicator.size), found, options.json)


def as_text(found: dict[str, Any], size: int) -> str:
    """Lines for each workload."""
    lines = []
    for name, one in found.items():
        parts = ", ".join([f"{part} {ms:.1f}" for part, ms in one["ms_of_parts"].items()])
        lines += [
            f"{name:12} one process {one['alone_ms']:.1f} ms, {size} processes that do not "
            f"communicate {one['side_by_side_ms']:.1f}, together "
            f"{one['together_ms']:.1f} ms ({parts}): {one['times_as_fast']:.2f} times as fast",
            f"{'':12} a process sends {one['bytes_sent']:,} bytes in {one['exchanges']} exchanges;"
            f" gradients differ by {one['gradients_differ']:.1e} of the largest at first, "
            f"parameters by {one['parameters_differ']:.1e} in the end (Adam)",
        ]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=", ".join(CHOICES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side that are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    if "RANK" in os.environ:
        work(chosen)
    else:
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        command = [sys.executable, "-m", "benchmarks.parallel", *sys.argv[1:]]
        sys.exit(launch(command, chosen.processes))
