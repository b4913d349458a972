"""dynbatch beside PyTorch on one card, in one process: whole training steps, taking turns.

float32 on all sides, without TF32, but for those that name another precision: dynbatch with
`matmul="tf32"` and "bfloat16", PyTorch with its switches for TF32 and under autocast. Ratios are to
dynbatch in the same precision. A step of dynbatch begins with a list of arrays of ids and makes the
graph; PyTorch's batches lie on the card already, padded or packed.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu import timeline
from benchmarks.gpu.cases import (
    PEERS,
    ROUNDED_PEERS,
    Case,
    case_of,
    parser,
    precisions,
)
from benchmarks.gpu.job import tell
from benchmarks.lengths import mean_padding_ratio
from benchmarks.measure import OURS, Contender, Disagreement, in_precision, interleave
from benchmarks.run import guard
from benchmarks.workloads.contender import DynbatchContender, median_cost
from dynbatch.kernels.runtime.precision import FULL


def measure(case: Case, peer_device: str = "cuda") -> Iterator[dict[str, Any]]:
    """All that is timed of one case: steps of all sides, then, side by side, where time goes.

    Args:
        peer_device: of PyTorch.
    """
    try:
        yield from _measure(case, peer_device)
    finally:
        gc.unfreeze()


def _measure(case: Case, peer_device: str) -> Iterator[dict[str, Any]]:
    ours = [case.ours(precision=name) for name in precisions()]
    peers, missing = usable(case, peer_device)
    batches, rng = case.data(), np.random.default_rng(2)
    sides = [*ours, *peers]
    try:
        guard(ours[0], sides[1:], case.corpus(), rng)
        disagreement = ""
    except Disagreement as error:
        disagreement = str(error)
    gc.freeze()  # the collector does not look through PyTorch's modules again and again
    timings = interleave(sides, batches, case.bucketed(), case.rounds, rng)
    costs = median_cost(ours[0].costs[-case.rounds * case.batches :])
    tokens = float(np.mean([batch.num_tokens for batch in batches]))
    prepared = {
        side.name: [side.prepare(batch) for batch in case.batches_of(side)] for side in sides
    }
    rows = _rows(sides, prepared, case.rounds)
    found = {}
    for side in sides:
        timing, row = timings[side.name], rows[side.name]
        base = in_precision(OURS, side.precision)
        found[side.name] = {
            "ms": timing.median_ms,
            "fastest_ms": timing.fastest_ms,
            "slowest_ms": timing.slowest_ms,
            "ratio": timing.median_ms / timings[base].median_ms,
            "tokens_per_second": 1e3 * tokens / timing.median_ms,
            "row_ms": 1e3 * row,
            "row_ratio": row / rows[base],
            "precision": side.precision,
        }
    state = {
        "case": case.name,
        "precision": "float32 without TF32, where nothing else is said",
        "tokens_per_step": tokens,
        "cells_per_token": mean_padding_ratio(batches),
        "disagreement": disagreement,
        "skipped": missing,
        "sides": found,
        "launches": costs["launches"],
        "uploads": costs["uploads"],
        "batches": costs["batches"],
        "copied_bytes": costs["copied_bytes"],
    }
    yield state
    for side in sides:
        found[side.name] |= _timeline(side, prepared[side.name], rows[side.name])
        yield state


def usable(case: Case, peer_device: str) -> tuple[list[Contender], dict[str, str]]:
    """The peers that can train, tried on others of their kind, and what the others say."""
    built: list[Contender] = []
    missing: dict[str, str] = {}
    for precision in precisions():
        for name in (PEERS if precision == FULL else ROUNDED_PEERS)[case.workload]:
            try:
                for peer in case.peers([name], peer_device, precision)[0]:
                    peer.train(peer.prepare(case.batches_of(peer)[0]))
                peers, skipped = case.peers([name], peer_device, precision)
            except (RuntimeError, TypeError, ValueError, ImportError) as error:
                why = f"{type(error).__name__}: {str(error)[:200]}"
                peers, skipped = [], {in_precision(name, precision): why}
            built += peers
            missing |= skipped
    return built, missing


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
    """The command: JSON again and again; status 1 where the sides disagree."""
    options = parser("speed", __doc__).parse_args(arguments)
    found = tell(measure(case_of(options), options.device))
    return 1 if found["disagreement"] else 0


if __name__ == "__main__":
    sys.exit(main())
