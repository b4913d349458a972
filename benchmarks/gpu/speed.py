"""dynbatch beside PyTorch on one card, in one process: whole training steps, taking turns.

float32 on both sides, without TF32. A step of dynbatch begins with a list of arrays of ids and
makes the graph; PyTorch's batches lie on the card already, padded or packed.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu import timeline
from benchmarks.gpu.cases import OURS, PEERS, Case, case_of, parser
from benchmarks.lengths import Batch, mean_padding_ratio
from benchmarks.measure import Contender, Disagreement, interleave
from benchmarks.run import guard
from benchmarks.workloads.contender import DynbatchContender, median_cost


def measure(case: Case, peer_device: str = "cuda") -> dict[str, Any]:
    """Everything that is timed of one case.

    Args:
        peer_device: of PyTorch.
    """
    try:
        return _measure(case, peer_device)
    finally:
        gc.unfreeze()


def _measure(case: Case, peer_device: str) -> dict[str, Any]:
    ours = case.ours()
    peers, skipped = case.peers(PEERS[case.workload], peer_device)
    sides = [ours, *peers]
    batches, rng = case.data(), np.random.default_rng(2)
    try:
        guard(ours, peers, case.corpus(), rng)
        disagreement = ""
    except Disagreement as error:
        disagreement = str(error)
    gc.freeze()  # the collector does not look through PyTorch's modules again and again
    timings = interleave(sides, batches, batches, case.rounds, rng)
    costs = median_cost(ours.costs[-case.rounds * case.batches :])
    tokens = float(np.mean([batch.num_tokens for batch in batches]))
    rows = _rows(sides, batches, case.rounds)
    base, base_row = timings[OURS].median_ms, rows[OURS]
    found = {}
    for side in sides:
        timing, row = timings[side.name], rows[side.name]
        found[side.name] = {
            "ms": timing.median_ms,
            "fastest_ms": timing.fastest_ms,
            "slowest_ms": timing.slowest_ms,
            "ratio": timing.median_ms / base,
            "tokens_per_second": 1e3 * tokens / timing.median_ms,
            "row_ms": 1e3 * row,
            "row_ratio": row / base_row,
            **_timeline(side, batches, row),
        }
    return {
        "case": case.name,
        "precision": "float32 without TF32, both sides",
        "tokens_per_step": tokens,
        "cells_per_token": mean_padding_ratio(batches),
        "disagreement": disagreement,
        "skipped": skipped,
        "sides": found,
        "launches": costs["launches"],
        "uploads": costs["uploads"],
        "batches": costs["batches"],
        "copied_bytes": costs["copied_bytes"],
    }


def _rows(sides: Sequence[Contender], batches: Sequence[Batch], rounds: int) -> dict[str, float]:
    """Median seconds a step of each side, in a row, the sides taking turns."""
    prepared = {side.name: [side.prepare(batch) for batch in batches] for side in sides}
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            gc.collect()
            seconds[side.name].append(timeline.in_a_row(side, prepared[side.name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _timeline(side: Contender, batches: Sequence[Batch], row_seconds: float) -> dict[str, Any]:
    prepared = [side.prepare(batch) for batch in batches]
    found: dict[str, Any] = timeline.alone(side, prepared)
    if isinstance(side, DynbatchContender):
        found |= timeline.parts(side, len(prepared))
    return found | timeline.busy(side, prepared, row_seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON to standard output; status 1 where the sides disagree."""
    options = parser("speed", __doc__).parse_args(arguments)
    found = measure(case_of(options), options.device)
    print(json.dumps(found))
    return 1 if found["disagreement"] else 0


if __name__ == "__main__":
    sys.exit(main())
