"""Processes of one thread beside one: `python -m benchmarks.parallel [tagger|transformer]`.

Training steps on whole mini-batches, in turn by one process and by all of them, each on its shard:
graph, forward, backward, sum of gradients, Adam. Beside these stand processes that do the same
without communicating, which is what the machine gives, and PyTorch alone and by
`DistributedDataParallel` over gloo. All sides begin with the same parameters and are in the same
processes: whoever has no turn waits, without work. The time of a step is that of the process which
is last. Beside the times stands what the sum costs: exchanges, bytes that a process sends, and its
share of the step, in which it also waits for the others' shards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.lengths import Batch
from benchmarks.networks import initial_values
from benchmarks.peers import build_peers
from benchmarks.report import show
from benchmarks.sides import Counted, Side, Step
from benchmarks.workloads import WORKLOADS
from dynbatch import parallel
from dynbatch.parallel.launcher import launch

MOST_APART = 1e-5  # of the gradients, of the largest
PEERS = {"tagger": "pytorch-packed", "transformer": "pytorch-by-sentence"}
"""Of PyTorch's forms of each workload, the fastest of those that pad nothing."""
TURN = 4  # steps that a side makes before the other one: who has waited begins with cold caches


def measure(
    communicator: parallel.Communicator, name: str, rounds: int, seed: int, peer: str | None = None
) -> dict[str, Any]:
    """Times and counts of one workload; on all ranks.

    Args:
        peer: of PyTorch's forms of the workload; None for dynbatch alone.

    Raises:
        ArithmeticError: the sides do not have the same gradients of the first mini-batch.
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
    batches = corpus.random_batches(
        np.random.default_rng(seed + 1), TURN * (rounds + 1), workload.batch
    )
    same = {"gradients_differ": alike(together, alone, batches[0])}
    sides: dict[str, Any] = {"alone": alone, "side_by_side": apart, "together": together}
    with ExitStack() as stack:
        if peer is not None:
            sides |= pytorch_sides(stack, communicator, peer, workload.sizes, values)
            same["peer_gradients_differ"] = alike(
                sides["peer_together"], sides["peer_alone"], batches[0]
            )
        counted = communicator._host = Counted(communicator._host)
        together.steps.clear()
        seconds, exchanges, sent = in_turns(communicator, sides, batches, counted)
    found = summary(seconds, communicator.gather_objects(together.steps[TURN:]))
    found |= {"exchanges": exchanges, "bytes_sent": sent, "peer": peer}
    later = difference(together.weights(), alone.weights()) if communicator.rank == 0 else 0.0
    return {**found, **same, "parameters_differ": later}


def pytorch_sides(
    stack: ExitStack, communicator: parallel.Communicator, peer: str, sizes: Any, values: Any
) -> dict[str, Any]:
    """PyTorch alone, and by all processes, until the stack ends."""
    from benchmarks.peers.pytorch_parallel import PyTorchSide, joined

    stack.enter_context(joined(communicator))
    (first, second), _ = build_peers([peer, peer], sizes, values, threads=1)
    return {
        "peer_alone": PyTorchSide(first),
        "peer_together": PyTorchSide(second, communicator.size, communicator.rank),
    }


def alike(together: Any, alone: Any, batch: Batch) -> float:
    """The distance of two sides' gradients, as a part of the largest number.

    Raises:
        ArithmeticError: too far.
    """
    error = difference(together.gradients(batch), alone.gradients(batch))
    if error > MOST_APART:
        raise ArithmeticError(f"the gradients differ by {error:.1e} of the largest")
    return error


def in_turns(
    communicator: parallel.Communicator, sides: dict[str, Any], batches: Sequence[Batch],
    counted: Counted,
) -> tuple[dict[str, list[float]], int, int]:  # fmt: skip
    """Seconds of each side's steps, of the process which was last, without the first turn.

    Beside them exchanges and bytes that a process sends in the last turn's steps together, each.
    """
    exchanges = sent = 0
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for begin in range(0, len(batches), TURN):
        turn = batches[begin : begin + TURN]
        for name, side in sides.items():
            works = communicator.rank == 0 or not name.endswith("alone")
            communicator.barrier()
            before = counted.exchanges, counted.bytes
            own = [side.train(batch) if works else 0.0 for batch in turn]
            if name == "together":
                exchanges, sent = counted.exchanges - before[0], counted.bytes - before[1]
            if begin:
                seconds[name] += map(max, zip(*communicator.gather_objects(own), strict=True))
    return seconds, exchanges // TURN, sent // TURN


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


def summary(seconds: dict[str, list[float]], steps: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """Medians, in milliseconds, and of what is faster how much.

    Args:
        seconds: of each step of each side.
        steps:   together, of each rank.
    """
    ms = {name: 1e3 * statistics.median(each) for name, each in seconds.items()}
    found: dict[str, Any] = {f"{name}_ms": round(each, 3) for name, each in ms.items()}
    found["times_as_fast"] = round(ms["alone"] / ms["together"], 3)
    if "peer_alone" in ms:
        found["peer_times_as_fast"] = round(ms["peer_alone"] / ms["peer_together"], 3)
    every = [step for rank in steps for step in rank]
    found["ms_of_parts"] = {
        part: round(1e3 * statistics.median([getattr(step, part) for step in every]), 3)
        for part in Step._fields
    }
    return found


def work(options: argparse.Namespace) -> None:
    """Measure, as one of the ranks; the first one prints."""
    db.set_num_threads(1)
    has_torch = find_spec("torch") is not None
    with parallel.connect() as communicator:
        found: dict[str, Any] = {
            name: measure(
                communicator, name, options.rounds, options.seed, PEERS[name] if has_torch else None
            )
            for name in options.workloads or PEERS
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
        if one["peer"] is not None:
            lines.append(
                f"{'':12} {one['peer']}: one process {one['peer_alone_ms']:.1f} ms, {size} by "
                f"DistributedDataParallel {one['peer_together_ms']:.1f}: "
                f"{one['peer_times_as_fast']:.2f} times as fast"
            )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=", ".join(PEERS))
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
