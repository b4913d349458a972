"""Many short sentences and a long one: `python -m benchmarks.one_long [--threads 2]`.

A training step of the Transformer on 63 sentences of usual length and one of 1,000 words, beside
the steps on the 63 and on the one. Together they should cost what they cost apart: a batch that is
padded to its longest sentence would hold 64,000 words. Times are of graph, forward and backward:
the update of the parameters, which apart would run twice, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.lengths import ONE_LONG, Batch
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.transformer import DynbatchTransformer

MOST = 1.1  # times what both cost apart
PARTS = ("together", "short", "long")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds and peak bytes of the three steps, taking turns, and the ratios."""
    db.set_num_threads(options.threads)
    rng = np.random.default_rng(options.seed)
    workload = WORKLOADS["transformer"].with_lengths("one-long")
    model = DynbatchTransformer(workload.sizes, initial_values(workload.sizes, rng))
    seconds: dict[str, list[float]] = {name: [] for name in PARTS}
    peaks: dict[str, list[int]] = {name: [] for name in PARTS}
    for turn in range(options.rounds + 1):
        (batch,) = workload.corpus(workload.sigma).random_batches(rng, 1, workload.batch)
        for name, part in split(batch).items():
            model.train(part)
            cost = model.costs[-1]
            if turn > 0:  # the first is not counted
                seconds[name].append(cost.step_seconds - cost.update_seconds)
                peaks[name].append(cost.peak_bytes)
    ms = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    peak = {name: statistics.median(sizes) for name, sizes in peaks.items()}
    return {
        "threads": options.threads,
        "rounds": options.rounds,
        "ms": {name: round(time, 3) for name, time in ms.items()},
        "peak_bytes": {name: int(size) for name, size in peak.items()},
        "time_ratio": round(ms["together"] / (ms["short"] + ms["long"]), 4),
        "memory_ratio": round(peak["together"] / (peak["short"] + peak["long"]), 4),
        "goal": MOST,
    }


def split(batch: Batch) -> dict[str, Batch]:
    """The batch, its short sentences, and its long one."""
    long = [len(words) == ONE_LONG for words in batch.sources]
    parts = {"together": batch}
    for name, wanted in (("short", False), ("long", True)):
        chosen = [pair for pair, is_long in zip(batch.sentences(), long, strict=True)
                  if is_long == wanted]  # fmt: skip
        parts[name] = Batch([s for s, _ in chosen], [t for _, t in chosen])
    return parts


def as_text(found: dict[str, Any]) -> str:
    """A line for each step, and the ratios."""
    lines = [
        f"{name:10}{found['ms'][name]:10.1f} ms{found['peak_bytes'][name] / 1e6:10.1f} MB peak"
        for name in PARTS
    ]
    ratios = f"time {found['time_ratio']:.2f}, memory {found['memory_ratio']:.2f}"
    lines.append(f"together over apart: {ratios}; at most {found['goal']} is wanted")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_long", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="batches that are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    result = run(chosen)
    show(as_text(result), result, chosen.json)
