"""The usual workloads one after the other, each in a process of its own, as one table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

TOGETHER = ("cnn", "tagger", "seq2seq", "tree", "transformer")

Found = Mapping[str, Any]


def measure(workload: str, options: Sequence[str]) -> Found | None:
    """The measurement of a workload by `benchmarks.run`; None if it fails, as stderr tells.

    So are its warnings, and which peers do not run.
    """
    command = [sys.executable, "-m", "benchmarks.run", workload, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        if done.returncode or line.startswith("WARNING") or "not run: " in line:
            print(f"{workload}: {line}", file=sys.stderr)
    if done.returncode:
        return None
    found: Found = json.loads(done.stdout)
    return found


def as_text(measured: Sequence[Found]) -> str:
    """A line for each side of each workload: milliseconds a step, and times dynbatch's."""
    if not measured:
        return "nothing ran"
    first = measured[0]
    where = "" if first["device"] == "cpu" else f", on {first['device']}"
    lines = [
        f"milliseconds per training step (medians), {first['threads']} threads{where}",
        f"{'workload':<14}{'sentences':>10}  {'side':<22}{'median':>10}{'× dynbatch':>13}",
    ]
    for found in measured:
        ours = found["dynbatch_ms"]
        sides = {"dynbatch": ours, **found["peers_ms"]}
        names = [f"{found['workload']:<14}{found['batch']:>10}"]
        for name, ms in sides.items():
            head = names.pop() if names else " " * 24
            times = f"{'not run':>10}" if ms is None else f"{ms:>10.1f}{ms / ours:>13.2f}"
            lines.append(f"{head}  {name:<22}{times}")
    return "\n".join(lines)
