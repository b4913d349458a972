"""The findings of a run, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.limit import Limits, ProductRate
from benchmarks.measure import Timing
from dynbatch.kernels.runtime.precision import FULL


def show(text: str, found: Any, as_json: bool) -> None:
    """Print a table; with `as_json` to stderr, and what it tells as JSON to stdout."""
    print(text, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(found))


@dataclass
class Report:
    """Everything one run of one workload found.

    Args:
        timings: of dynbatch and of every peer that ran, by name; dynbatch's first.
        costs:   medians of dynbatch's counters.
        skipped: reason for each peer that did not run.
        notes:   lines about data, kernels and settings.
        warning: why the times are not to be trusted, or nothing.
        words:   read by a mini-batch, on average.
        limits:  the rates of the machine, where they are known.
        precisions: of the products of those sides whose are not of float32, by name.
        compile_seconds: of the sides that compile before their first steps, by name.
    """

    workload: str
    batch: int
    threads: int
    versions: Mapping[str, str]
    timings: Mapping[str, Timing]
    costs: Mapping[str, float]
    peers: Sequence[str]
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    warning: str = ""
    device: str = "cpu"
    words: float = 0.0
    limits: Limits | None = None
    precisions: Mapping[str, str] = field(default_factory=dict)
    compile_seconds: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """One object; times are medians in ms per mini-batch, null for what did not run."""
        timings = self.timings
        return {
            "workload": self.workload,
            "batch": self.batch,
            "threads": self.threads,
            "device": self.device,
            "versions": dict(self.versions),
            "dynbatch_ms": round(timings["dynbatch"].median_ms, 3),
            "peers_ms": {
                name: round(timings[name].median_ms, 3) if name in timings else None
                for name in self.peers
            },
            "host_share": round(self.costs["host_share"], 4),
            "launches": int(self.costs["launches"]),
            "nodes_per_sentence": round(self.costs["nodes"] / self.batch, 2),
            "tokens": round(self.words, 1),
            "batches": int(self.costs["batches"]),
            "lower_bound": int(self.costs["lower_bound"]),
            "host_us_per_cell": round(self.costs["host_us_per_cell"], 3),
            "copied_bytes": int(self.costs["copied_bytes"]),
            "peak_bytes": int(self.costs["peak_bytes"]),
            "flops_per_second": round(self.costs["flops_per_second"]),
            "product_flops_per_second": {
                name: round(rate.flops_per_second) for name, rate in self._products().items()
            },
            "copied_bytes_per_second": (
                round(self.limits.copied_bytes_per_second) if self.limits else 0
            ),
            "shares_of_limit": {
                name: float(f"{self.share_of_limit(name):.4g}") for name in timings if self.limits
            },
            "compile_seconds": {k: round(s, 1) for k, s in self.compile_seconds.items()},
        }

    def as_text(self) -> str:
        """An aligned table, and below it what dynbatch did and what ran underneath."""
        base = self.timings["dynbatch"].median_ms
        width = max(16, *map(len, self.timings))
        lines = [
            f"{self.workload}: milliseconds per training step of {self.batch} sentences, "
            f"{self.threads} threads{'' if self.device == 'cpu' else f', on {self.device}'}",
            self.warning,
            f"{'':{width}}{'median':>10}{'fastest':>10}{'slowest':>10}{'× dynbatch':>13}"
            + (f"{'of limit':>11}" if self.limits else "")
            + (f"{'compiling, s':>14}" if self.compile_seconds else ""),
        ]
        for name, timing in self.timings.items():
            times = (timing.median_ms, timing.fastest_ms, timing.slowest_ms)
            columns = "".join(f"{time:>10.1f}" for time in times)
            if name in self.compile_seconds:
                compiling = f"{self.compile_seconds[name]:>14.0f}"
            else:
                compiling = " " * 14 if self.compile_seconds else ""
            share = f"{100 * self.share_of_limit(name):>9.0f} %" if self.limits else ""
            ratio = f"{timing.median_ms / base:>13.2f}"
            lines.append(f"{name:{width}}{columns}{ratio}{share}{compiling}")
        lines += [f"{name:{width}}not run: {reason}" for name, reason in self.skipped.items()]
        costs = self.costs
        cell = costs["host_us_per_cell"]
        per_cell = f" ({cell:.2f} µs a cell node)" if cell else ""
        lines += [
            "",
            f"dynbatch   host {100 * costs['host_share']:.1f} % of the step{per_cell}, "
            f"{costs['nodes'] / self.batch:.1f} nodes a sentence, {costs['launches']:.0f} launches "
            f"in {costs['batches']:.0f} batches (lower bound {costs['lower_bound']:.0f}), "
            f"{costs['copied_bytes'] / 1e6:.1f} MB copied, "
            f"{costs['peak_bytes'] / 1e6:.1f} MB peak",
            *([] if self.limits is None else [f"limit      {self.limits}"]),
            "versions   " + ", ".join(f"{name} {number}" for name, number in self.versions.items()),
            *self.notes,
        ]
        return "\n".join(lines)

    def share_of_limit(self, name: str) -> float:
        """The share of the machine's product rate that a side reaches in its precision.

        Counted are the floating-point operations that a step of dynbatch's takes: no padding.
        """
        rate = self._products()[self.precisions.get(name, FULL)]
        seconds = 1e-3 * self.timings[name].median_ms
        return self.costs["flops"] / seconds / rate.flops_per_second

    def _products(self) -> Mapping[str, ProductRate]:
        return self.limits.products if self.limits else {}
