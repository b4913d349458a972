"""Train what is missing in the results, and write their table: `python -m benchmarks.quality`.

Each training is a process of its own, and is in the results once it ends: stop the command at any
time, and the next one goes on. One that fails is named at the end, and tried again by the next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environment import processor_name
from benchmarks.quality.images_and_passages import Digits, Passages
from benchmarks.quality.language_model import LanguageModel
from benchmarks.quality.table import NUM_SEEDS, write_table
from benchmarks.quality.tagging import Parsing, Tagging
from benchmarks.quality.task import Task
from benchmarks.quality.training import SIDES, trained
from benchmarks.quality.translation import Messages, MessagesByTransformer, Pronunciation, Scan
from benchmarks.quality.trees import ListOps, Relations, Syntax
from dynbatch.atomic import write_text

TASKS: list[type[Task]] = [
    Pronunciation, Scan, Messages, MessagesByTransformer, LanguageModel, Tagging, Parsing, Passages,
    Digits, ListOps, Relations, Syntax,
]  # fmt: skip

RESULTS = Path("benchmarks/results/quality.json")


def main() -> int:
    """Run what the options ask for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = {task.name.replace(" ", "-"): task for task in TASKS}
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(NUM_SEEDS)])
    parser.add_argument("--table", action="store_true", help="only write docs/results.md")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.tasks) - set(names):
        parser.error(f"no tasks: {', '.join(unknown)}; there are {', '.join(names)}")
    if options.inside:
        (name,), (side,), (seed,) = options.tasks, options.sides, options.seeds
        print(json.dumps(asdict(trained(names[name], side, seed))))
        return 0
    runs = [
        (seed, name, side)
        for seed in options.seeds
        for name in options.tasks or names
        for side in options.sides
    ]
    failed = []
    for run in [] if options.table else runs:
        if not any([(r["seed"], r["task"], r["side"]) == run for r in results()]):
            failed += [] if _run(*run) else [run]
    write_table(results(), names)
    for seed, name, side in failed:
        print(f"failed: {name} --sides {side} --seeds {seed}", file=sys.stderr)
    return 1 if failed else 0


def results() -> list[dict[str, Any]]:
    """All trainings so far."""
    lines: list[dict[str, Any]] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    )
    return lines


def _run(seed: int, name: str, side: str) -> bool:
    """Train in a process of its own, and keep the outcome; whether there is one."""
    arguments = [name, "--sides", side, "--seeds", str(seed)]
    command = [sys.executable, "-m", "benchmarks.quality", *arguments, "--inside"]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if process.returncode:
        return False
    outcome = json.loads(process.stdout.splitlines()[-1])
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
    line = {"task": name, "side": side, "seed": seed, **outcome, "commit": commit}
    lines = [*results(), {**line, "processor": processor_name()}]
    write_text(RESULTS, "[\n" + ",\n".join([json.dumps(each) for each in lines]) + "\n]\n")
    return True


if __name__ == "__main__":
    sys.exit(main())
