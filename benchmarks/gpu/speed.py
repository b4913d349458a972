"""dynbatch beside PyTorch on one card, in one process: whole training steps, taking turns.

float32 on all sides, without TF32, but for those that name another precision. A step of dynbatch
begins with a list of arrays of ids and makes the graph; PyTorch's batches lie on the card already,
padded or packed.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu import timeline
from benchmarks.gpu.cases import OURS, PEERS, Case, case_of, parser
from benchmarks.lengths import mean_padding_ratio
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
    names, broken = usable(case, peer_device)
    peers, skipped = case.peers(names, peer_device)
    batches, rng = case.data(), np.random.default_rng(2)
    sides = [ours, *peers]
    try:
        guard(ours, [peer for peer in peers if peer.precision == "float32"], case.corpus(), rng)
        disagreement = ""
    except Disagreement as error:
        disagreement = str(error)
    gc.freeze()  # the collector does not look through PyTorch's modules again and again
    timings = interleave(sides, batches, case.bucketed(), case.rounds, rng)
    costs = median_cost(ours.costs[-case.rounds * case.batches :])
    tokens = float(np.mean([batch.num_tokens for batch in batches]))
    prepared = {
        side.name: [side.prepare(batch) for batch in case.batches_of(side)] for side in sides
    }
    rows = _rows(sides, prepared, case.rounds)
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
            "precision": side.precision,
            **_timeline(side, prepared[side.name], row),
        }
    return {
        "case": case.name,
        "precision": "float32 without TF32, where nothing else is said",
        "tokens_per_step": tokens,
        "cells_per_token": mean_padding_ratio(batches),
        "disagreement": disagreement,
        "skipped": skipped | broken,
        "sides": found,
        "launches": costs["launches"],
        "uploads": costs["uploads"],
        "batches": costs["batches"],
        "copied_bytes": costs["copied_bytes"],
    }


def usable(case: Case, peer_device: str) -> tuple[list[str], dict[str, str]]:
    """The peers that can train, tried on others of their kind, and what those that fail say."""
    names, broken = [], {}
    for name in PEERS[case.workload]:
        try:
            for peer in case.peers([name], peer_device)[0]:
                peer.train(peer.prepare(case.batches_of(peer)[0]))
            names.append(name)
        except (RuntimeError, TypeError, ValueError, ImportError) as error:
            broken[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return names, broken


def _rows(
    sides: Sequence[Contender], prepared: Mapping[str, Sequence[Any]], rounds: int
) -> dict[str, float]:
    """Median seconds a step of each side, in a row, the sides taking turns."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            gc.collect()
            seconds[side.name].append(timeline.in_a_row(side, prepared[side.name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _timeline(side: Contender, prepared: Sequence[Any], row_seconds: float) -> dict[str, Any]:
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
