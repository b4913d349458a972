"""The demo's whole life: `python -m benchmarks.demo [--rounds 1] [--against FOLDER]`.

A life is a process, that of `make demo`, from import to the error rate of words that it has not
seen. Checkouts take turns. The first life of a machine also compiles what is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import show

OURS = "dynbatch"
ROOT = Path(__file__).resolve().parents[1]
COMMAND = (
    "examples/seq2seq/train.py cmudict --limit 36000 --epochs 2 --embed 64 --hidden 128 --lr 4e-3"
)
"""The command of `make demo`, but for its checkpoint."""
_RATE = re.compile(r"test: token error rate ([0-9.]+)%")


class DemoRun(NamedTuple):
    """Seconds of a life, and the percentage of phonemes that were wrong at its end."""

    seconds: float
    error_rate: float


def live(root: Path) -> DemoRun:
    """Run the demo of a checkout.

    Raises:
        CalledProcessError: it failed.
        ValueError:         it told no error rate.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *COMMAND.split(), "--checkpoint", f"{folder}/demo.safetensors"]
        begin = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the progress bars
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - begin
    rate = _RATE.search(done.stdout)
    if rate is None:
        raise ValueError(f"the demo of {root} told no error rate")
    return DemoRun(seconds, float(rate[1]))


def as_text(found: Mapping[str, DemoRun]) -> str:
    """The table: seconds, error rate, and times dynbatch's seconds."""
    ours = found[OURS].seconds
    lines = [f"{'':24} {'seconds':>8} {'wrong':>7} {'× dynbatch':>11}"]
    for name, (seconds, rate) in found.items():
        lines.append(f"{name:24} {seconds:8.1f} {rate:6.2f}% {seconds / ours:11.2f}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="lives of each checkout")
    parser.add_argument("--against", default="", metavar="FOLDER", help="another checkout")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    roots = {OURS: ROOT}
    if options.against:
        other = Path(options.against).resolve()
        roots[f"{OURS} in {other.name}"] = other
    lives: dict[str, list[DemoRun]] = {name: [] for name in roots}
    for _ in range(options.rounds):
        for name, root in roots.items():
            lives[name].append(live(root))
            print(f"{name}: {lives[name][-1]}", file=sys.stderr)
    found = {
        name: DemoRun(*[statistics.median(numbers) for numbers in zip(*runs, strict=True)])
        for name, runs in lives.items()
    }
    show(as_text(found), {name: run._asdict() for name, run in found.items()}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
