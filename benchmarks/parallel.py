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
    """A model that is trained by the processes of a communicator."""

    def __init__(self, ours: DynbatchContender, communicator: parallel.Communicator) -> None:
        self._ours = ours
        self._communicator = communicator
        self._adam = optim.Adam(ours.parameters(), lr=LEARNING_RATE)

    def train(self, batch: Batch) -> Step:
        """One training step with this process's shard of a mini-batch."""
        begun = time.perf_counter()
        ran, summed = self._differentiate(batch)
        self._adam.step()
        end = time.perf_counter()
        return Step(end - begun, ran - begun, summed - ran, end - summed)

    def gradients(self, batch: Batch) -> list[Any]:
        """The gradients of a mini-batch, dense; no update."""
        self._differentiate(batch)
        found = [dense_gradient(parameter) for parameter in self._ours.parameters()]
        self._adam.zero_grad()
        return found

    def weights(self) -> list[Any]:
        """Copies of all parameters."""
        return [parameter.numpy() for parameter in self._ours.parameters()]

    def _differentiate(self, batch: Batch) -> tuple[float, float]:
        """Sum the gradients of all shards; when this one's were there, and the sums."""
        communicator = self._communicator
        lengths = [len(words) for words in batch.sources]
        shard = parallel.balanced(lengths, communicator.size)[communicator.rank]
        with db.Graph() as graph:
            losses = [
                self._ours.sentence_loss(graph, batch.sources[k], batch.targets[k]) for k in shard
            ]
            if losses:
                graph.backward(F.sum(losses) / batch.num_sentences)
        ran = time.perf_counter()
        parallel.sum_gradients(communicator, self._adam)
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
    together = Side(workload.ours(workload.sizes, values, "cpu"), communicator)
    alone = Side(workload.ours(workload.sizes, values, "cpu"), parallel.Communicator())
    batches = workload.corpus(workload.sigma).random_batches(
        rng, TURN * (rounds + 1), workload.batch
    )
    steps: list[Any] = []
    counted = communicator._host = Counted(communicator._host)
    exchanges, sent = 0, 0
    apart = difference(together.gradients(batches[0]), alone.gradients(batches[0]))
    if apart > MOST_APART:
        raise ArithmeticError(f"{name}: the gradients differ by {apart:.1e} of the largest")
    for begin in range(0, len(batches), TURN):
        turn = batches[begin : begin + TURN]
        is_first = communicator.rank == 0
        seconds = [alone.train(batch).whole if is_first else 0.0 for batch in turn]
        communicator.barrier()
        before = counted.exchanges, counted.bytes
        shards = [together.train(batch) for batch in turn]
        exchanges = (counted.exchanges - before[0]) // len(turn)
        sent = (counted.bytes - before[1]) // len(turn)
        measured = list(zip(seconds, shards, strict=True))
        steps += zip(*communicator.gather_objects(measured), strict=True)
    found = summary(steps[TURN:], exchanges, sent)  # the first turn is not counted
    later = difference(together.weights(), alone.weights()) if communicator.rank == 0 else 0.0
    return {**found, "gradients_differ": apart, "parameters_differ": later}


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of arrays, as a part of the largest number."""
    most = max([float(np.abs(x - y).max()) for x, y in zip(found, wanted, strict=True)])
    return most / max([float(np.abs(y).max()) for y in wanted])


def summary(steps: Sequence[Any], exchanges: int, sent: int) -> dict[str, Any]:
    """Medians, in milliseconds.

    Args:
        steps: of each mini-batch (seconds alone, `Step`) of each rank.
    """
    alone = [1e3 * ranks[0][0] for ranks in steps]
    last = [1e3 * max([step.whole for _, step in ranks]) for ranks in steps]
    each_step = [step for ranks in steps for _, step in ranks]
    medians = {
        part: round(1e3 * statistics.median([getattr(step, part) for step in each_step]), 3)
        for part in ("graph", "exchange", "update")
    }
    return {
        "alone_ms": round(statistics.median(alone), 3),
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
            f"{name:12} one process {one['alone_ms']:.1f} ms, {size} processes "
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
