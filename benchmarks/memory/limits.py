"""A training step within limits of its memory: `python -m benchmarks.memory.limits WORKLOAD`.

A mini-batch runs without a limit and with several, from the peak down to the least possible, taking
turns: what each held, how long forward, backward and planning took, and what was done to hold less.
Loss and gradients are compared with those without a limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA, Batch
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.contender import DynbatchContender
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.errors import MemoryLimitError
from dynbatch.testing.precision import dense_gradient

# Of gradients in float32, which parts and other orders of sums round differently.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Point:
    """One limit, or none. Times are medians, and relative to the step without a limit.

    Args:
        share:        the limit, of the peak without one.
        held:         what was held, of the same.
        times_longer: the step: building, planning, forward, backward.
        planning:     its part that planned within the limit, of the step without a limit.
        saving:       what was done.
    """

    share: float
    held: float
    times_longer: float
    planning: float
    saving: str


@dataclass(frozen=True)
class Outcome:
    """One step."""

    loss: float
    use: MemoryUse
    seconds: float
    planning: float


def step(ours: DynbatchContender, batch: Batch, limit: int | None) -> Outcome:
    """Build, run forward and back; gradients stay in the parameters."""
    begin = time.perf_counter()
    with db.Graph() as graph:
        loss = ours.mean_loss(graph, batch)
        planned = time.perf_counter()
        graph.estimate(loss, limit)
        planning = time.perf_counter() - planned
        graph.backward(loss, limit)
        use = graph.memory_use
    return Outcome(float(loss.value), use, time.perf_counter() - begin - planning, planning)


def least(ours: DynbatchContender, batch: Batch) -> int:
    """The smallest limit, in bytes."""
    with db.Graph() as graph:
        try:
            use = graph.estimate(ours.mean_loss(graph, batch), memory_limit=1)
        except MemoryLimitError as error:
            return error.least_bytes
    return use.peak_bytes


def measure(
    ours: DynbatchContender, batch: Batch, rounds: int, shares: Sequence[float]
) -> list[Point]:
    """A point for no limit, one for each share of the peak that is possible, and the least.

    Raises:
        AssertionError: a limit was exceeded, or changed loss or gradients.
    """
    parameters = ours.parameters()
    whole = step(ours, batch, None)
    expected = [dense_gradient(parameter) for parameter in parameters]
    lowest, peak = least(ours, batch), whole.use.peak_bytes
    limits: list[int | None] = [None]
    limits += [int(share * peak) for share in shares if share * peak > lowest] + [lowest]
    found: list[list[Outcome]] = [[] for _ in limits]
    for _ in range(rounds):
        for outcomes, limit in zip(found, limits, strict=True):
            for parameter in parameters:
                parameter.zero_grad()
            outcomes.append(step(ours, batch, limit))
            held = outcomes[-1].use.peak_bytes
            assert limit is None or held <= limit, f"{held} bytes held, the limit is {limit}"
            assert np.isclose(outcomes[-1].loss, whole.loss, rtol=1e-5)
            for parameter, one in zip(parameters, expected, strict=True):
                error = np.abs(dense_gradient(parameter) - one).max()
                assert error <= TOLERANCE * np.abs(one).max(), parameter.name
    usual = statistics.median([outcome.seconds for outcome in found[0]])
    return [
        Point(
            (peak if limit is None else limit) / peak,
            outcomes[0].use.peak_bytes / peak,
            statistics.median([outcome.seconds for outcome in outcomes]) / usual,
            statistics.median([outcome.planning for outcome in outcomes]) / usual,
            outcomes[0].use.saving,
        )
        for outcomes, limit in zip(found, limits, strict=True)
    ]


def table(points: Sequence[Point], warning: str) -> str:
    """Aligned, one line a limit."""
    lines = [warning] if warning else []
    lines.append(f"{'limit':>6}{'held':>7}{'× as long':>11}{'planning':>10}  what was done")
    for point in points:
        lines.append(
            f"{point.share:>6.2f}{point.held:>7.3f}{point.times_longer:>11.2f}"
            f"{point.planning:>10.1%}  {point.saving or 'nothing'}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory.limits", description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--batch", type=int, default=64, help="sentences")
    parser.add_argument("--hidden", type=int, help="width of the network, if not the usual one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="times each limit is timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    workload = WORKLOADS[options.workload]
    if options.hidden:
        workload = workload.with_hidden(options.hidden)
    rng = np.random.default_rng(options.seed)
    ours, _, _ = workload.build(rng, [], options.threads)
    (batch,) = workload.corpus(REAL_TEXT_SIGMA).random_batches(rng, 1, options.batch)
    others = OtherWork()
    points = measure(ours, batch, options.rounds, [0.1 * k for k in range(9, 0, -1)])
    show(table(points, others.warning()), [asdict(point) for point in points], options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
