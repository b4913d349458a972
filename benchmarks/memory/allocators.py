"""Allocators on the logs of real training: `python -m benchmarks.memory.allocators`.

Training runs over mini-batches of varying sizes and writes down what it asks the pool for; the log
is replayed on every allocator. A line says what an allocator reserved at most, over the most that
was asked for; what it wasted at that moment, inside buffers (internal) and between them (external);
how often it asked the upstream, all in all and after the warm-up; and its time.

Logs: each workload; `decoding`, in which the seq2seq writes sentences after every few steps, many
runs of one graph; and of each workload `… blocks`: the blocks of its arenas one by one, as they
would be allocated if no arena were planned.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.memory.planners import recorded
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.contender import DynbatchContender
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from dynbatch.generation.generate import generate
from dynbatch.memory import (
    Adaptor,
    Arena,
    Buddy,
    Event,
    Interval,
    Logging,
    MemoryStatistics,
    Pool,
    Resource,
    SizeClasses,
    read_log,
    replay,
)

RECORDED = ("tagger", "tree", "transformer", "seq2seq", "decoding")
DEFAULT = "arena"
ALLOCATORS: Mapping[str, Callable[[Resource], Resource]] = {
    DEFAULT: Arena,
    "arena, no growth": partial(Arena, growth=0.0),
    "arena, growth 1/8": partial(Arena, growth=0.125),
    "size classes": SizeClasses,
    "size classes, 4": partial(SizeClasses, per_doubling=4),
    "buddy": Buddy,
    "upstream alone": Adaptor,
}
WARM_UP = 50  # steps
# Sizes are multiples of a network's width: at one they may fit powers of two by luck, not at all.
SCALES = (1.0, 2**0.25, 2**0.5, 2**0.75)
DECODE_EVERY, DECODED, LONGEST = 5, 16, 30


@dataclass(frozen=True)
class Log:
    """The requests of one program to its pool.

    Args:
        warm: number of the first event after the warm-up.
    """

    name: str
    events: list[Event]
    warm: int


@dataclass(frozen=True)
class Steady:
    """Figures of the default pool in the program itself. Bytes; the steps after the warm-up.

    used_bytes:     the most in use between two steps.
    reserved_bytes: after the warm-up, and in the end.
    free_bytes:     of what is reserved, not in use when most was in use; `scattered_bytes`, the
                    most of the free bytes that did not lie in one piece between two steps.
    """

    name: str
    steps: int
    upstream_allocations: tuple[int, int]
    used_bytes: int
    reserved_bytes: tuple[int, int]
    peak_bytes: int
    free_bytes: int
    scattered_bytes: int


@dataclass(frozen=True)
class Row:
    """One allocator on one log; bytes.

    overhead:      reserved over asked for, the geometric mean over `SCALES`; `after_warm_up` is the
                   sum over them. The others are at scale 1.
    """

    log: str
    allocator: str
    requested_bytes: int
    reserved_bytes: int
    overhead: float
    internal_bytes: int
    external_bytes: int
    upstream_allocations: int
    after_warm_up: int
    us_per_event: float


# Recording ----------------------------------------------------------------------------------------


def record(name: str, steps: int, sentences: int, hidden: int | None, seed: int) -> tuple[
    list[Log], Steady
]:  # fmt: skip
    """The logs of a workload's training, and what its pool did."""
    workload = WORKLOADS["seq2seq" if name == "decoding" else name]
    workload = workload.with_hidden(hidden) if hidden else workload
    rng = np.random.default_rng(seed)
    side = workload.ours(workload.sizes, initial_values(workload.sizes, rng), "cpu")
    corpus, file = workload.corpus(REAL_TEXT_SIGMA), io.StringIO()
    pool = Pool(allocator=lambda upstream: Logging(Arena(upstream), file))
    seen, lines, blocks = [], [], [0]
    alone: list[Event] = []
    with patch("dynbatch.graph.pool_of", lambda device: pool), recorded() as placed:
        for number in range(steps):
            side.train(corpus.random_batches(rng, 1, sentences)[0])
            if name == "decoding" and number % DECODE_EVERY == 0:
                _decode(side, corpus.random_batches(rng, 1, DECODED)[0].sources)
            for intervals, _ in placed:
                alone += one_by_one(intervals, len(alone))
            placed.clear()
            seen.append(pool.statistics())
            lines.append(file.getvalue().count("\n") - 1)
            blocks.append(len(alone))
    warm = min(WARM_UP, steps // 2)
    logs = [Log(name, read_log(file.getvalue().splitlines()), lines[warm - 1])]
    if name != "decoding":  # there, values of one run are read in later ones
        logs.append(Log(f"{name} blocks", alone, blocks[warm]))
    return logs, _steady(name, seen, warm)


def _decode(side: DynbatchContender, sources: Sequence[Any]) -> None:
    assert isinstance(side, DynbatchSeq2Seq)
    model = side._model
    generate(model, sources, max_new_tokens=LONGEST)


def one_by_one(blocks: Sequence[Interval], first_address: int) -> list[Event]:
    """A run's blocks, allocated as they are written and freed after they are read; float32."""
    blocks = [block for block in blocks if block.size]
    end = 1 + max([block.first for block in blocks], default=0)
    timed = [
        (time, block.first != time, Event(block.first == time, first_address + k, 4 * block.size))
        for k, block in enumerate(blocks)
        for time in (block.first, min(block.last, end) + 0.5)
    ]
    return [event for _, _, event in sorted(timed, key=lambda entry: entry[:2])]


def _steady(name: str, seen: Sequence[MemoryStatistics], warm: int) -> Steady:
    after, last = seen[warm:], seen[-1]
    return Steady(
        name,
        len(seen),
        (seen[warm - 1].upstream_allocations, last.upstream_allocations),
        max([found.rounded_bytes for found in after]),
        (seen[warm - 1].reserved_bytes, last.reserved_bytes),
        last.peak_rounded_bytes,
        last.reserved_bytes - last.peak_rounded_bytes,
        max([found.scattered_bytes for found in after]),
    )


# Replaying ----------------------------------------------------------------------------------------


def measure(log: Log, allocator: str) -> Row:
    """One replay at each scale."""
    scaled = [
        [event._replace(size=int(scale * event.size)) for event in log.events] for scale in SCALES
    ]
    replays = [replay(events, ALLOCATORS[allocator]) for events in scaled]
    found = replays[0]
    return Row(
        log.name,
        allocator,
        found.end.peak_requested_bytes,
        found.end.peak_reserved_bytes,
        statistics.geometric_mean([one.overhead for one in replays]),
        found.at_peak.internal_bytes,
        found.at_peak.free_bytes,
        found.end.upstream_allocations,
        sum([number >= log.warm for one in replays for number in one.upstream_events]),
        1e6 * found.seconds / max(1, len(log.events)),
    )


def best(rows: Sequence[Row]) -> tuple[str, dict[str, tuple[int, float]]]:
    """The allocator that is best, and of each what it is judged by.

    Fewest logs with a request to the upstream after the warm-up, which on a GPU waits for it; of
    equal ones the least mean (geometric) of what is reserved over what is asked for.
    """
    judged = {}
    for allocator in dict.fromkeys(row.allocator for row in rows):
        found = [row for row in rows if row.allocator == allocator]
        mean = statistics.geometric_mean([row.overhead for row in found])
        judged[allocator] = sum([row.after_warm_up > 0 for row in found]), mean
    return min(judged, key=lambda allocator: judged[allocator]), judged


def table(rows: Sequence[Row], steady: Sequence[Steady], warning: str = "") -> str:
    """All replays, what was steady, and who is best."""
    lines = [warning] if warning else []
    lines.append(
        f"{'MB':20}{'allocator':20}{'asked':>8}{'reserved':>10}{'ratio':>7}{'internal':>10}"
        f"{'external':>10}{'upstream':>10}{'after':>7}{'µs':>7}"
    )
    for row in rows:
        numbers = (row.requested_bytes, row.reserved_bytes, row.internal_bytes, row.external_bytes)
        asked, reserved, internal, external = [f"{number / 1e6:.1f}" for number in numbers]
        lines.append(
            f"{row.log:20}{row.allocator:20}{asked:>8}{reserved:>10}{row.overhead:>7.3f}"
            f"{internal:>10}{external:>10}{row.upstream_allocations:>10}{row.after_warm_up:>7}"
            f"{row.us_per_event:>7.2f}"
        )
    for found in steady:
        before, after = found.upstream_allocations
        lines.append(
            f"{found.name}: {found.steps} steps, {before} upstream allocations in the warm-up and "
            f"{after - before} after it; {found.used_bytes} bytes in use between steps, reserved "
            f"{found.reserved_bytes[0]:,} after the warm-up and {found.reserved_bytes[1]:,} in the "
            f"end, {found.free_bytes:,} more than the most in use; {found.scattered_bytes:,} "
            "not in one piece"
        )
    winner, judged = best(rows)
    for allocator, (unsteady, mean) in judged.items():
        lines.append(
            f"{allocator:20} asks the upstream after the warm-up in {unsteady} logs, reserves "
            f"{mean:.3f} of what is asked for (mean)"
        )
    return "\n".join([*lines, f"best: {winner}; the default: {DEFAULT}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where the default is not the best."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory.allocators")
    parser.add_argument(
        "logs", nargs="*", default=RECORDED, metavar="LOG",
        help=f"{', '.join(RECORDED)}, or a file written by db.memory.Logging or by RMM",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=300, help="of training, for each log")
    parser.add_argument("--sentences", type=int, default=64, help="of a mini-batch")
    parser.add_argument("--hidden", type=int, help="width of the networks, if not 256")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    others = OtherWork()
    logs: list[Log] = []
    steady = []
    for name in options.logs:
        if name not in RECORDED:
            with open(name, encoding="utf-8") as file:
                events = read_log(file)
            logs.append(Log(Path(name).stem, events, len(events) // 2))
            continue
        found, pooled = record(name, options.steps, options.sentences, options.hidden, options.seed)
        logs += found
        steady.append(pooled)
    rows = [measure(log, allocator) for log in logs for allocator in ALLOCATORS]
    first, *_ = best(rows)
    found = {"replays": [asdict(r) for r in rows], "steady": [asdict(s) for s in steady]}
    found |= {"best": first, "default": DEFAULT}
    show(table(rows, steady, others.warning()), found, options.json)
    return int(first != DEFAULT)


if __name__ == "__main__":
    sys.exit(main())
