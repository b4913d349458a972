"""The accuracy lost by rounded factors: `python -m benchmarks.precision [cmudict] [scan]`.

`dynbatch train` learns pairs with `--matmul float32`, `tf32` and `bfloat16` from the same seeds,
and greedily decodes pairs it has not seen, in float32. On the CPU this shows what tensor cores of a
GPU will train, as factors are rounded there to the same bits (docs/design/cuda.md).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import show
from dynbatch.demo.scan import scan_pairs
from dynbatch.kernels.runtime.precision import MANTISSA_BITS
from examples.corpora import cmudict

ROOT = Path(__file__).resolve().parents[1]
TASKS = {
    "cmudict": [
        "--limit", "36000", "--embed", "64", "--hidden", "128", "--dropout", "0", "--epochs", "2",
        "--lr", "4e-3",
    ],
    "scan": [
        "--embed", "64", "--hidden", "128", "--dropout", "0.1",
        "--epochs", "6", "--lr", "4e-3",
    ],
}  # fmt: skip
"""What each task gives to `dynbatch train`, beside a file of its pairs."""

WRONG = {"cmudict": "phonemes and words wrong", "scan": "actions and commands wrong"}
_RATES = re.compile(
    r"decided by:\ntoken error rate ([0-9.]+)%, ([0-9,]+) of ([0-9,]+) sequences exact"
)


def write_pairs(task: str, path: Path) -> None:
    """Write the pairs of a task as `source<TAB>target` lines."""
    if task == "cmudict":
        pairs = [(word.source, phones) for word in cmudict.load() for phones in word.references]
    else:
        pairs = [(" ".join(command), " ".join(actions)) for command, actions in scan_pairs()]
    path.write_text(
        "".join([f"{source}\t{target}\n" for source, target in pairs]), encoding="utf-8"
    )


def error_rates(task: str, matmul: str, seed: int, given: Sequence[str] = ()) -> list[float]:
    """Train and test; percentages of tokens and of sequences that are wrong.

    Args:
        given: more options of `dynbatch train`, as "--limit 1000".

    Raises:
        CalledProcessError: it failed; what it wrote to stderr is there.
        ValueError:         it told no error rates.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pairs.tsv")
        write_pairs(task, path)
        options = [*TASKS[task], "--matmul", matmul, "--seed", str(seed), *given]
        command = [sys.executable, "-m", "dynbatch", "train", str(path), "--task", "translation"]
        done = subprocess.run(
            [*command, *options, "--output", folder],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
            text=True, check=True,
        )  # fmt: skip
    rates = _RATES.search(done.stdout)
    if rates is None:
        raise ValueError(f"{task} told no error rates of tokens and sequences")
    tokens, exact, count = [float(number.replace(",", "")) for number in rates.groups()]
    return [tokens, 100 * (1 - exact / count)]


def as_text(found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> str:
    """For each task a table: of each precision the mean of all seeds, and how far float32's is."""
    lines = []
    for task, rates in found.items():
        lines += ["", f"{task}: % of {WRONG[task]}; seeds {len(rates['float32'])}"]
        usual = _means(rates["float32"])
        for precision, each in rates.items():
            means = _means(each)
            columns = [f"{m:8.2f} ({m - u:+.2f})" for m, u in zip(means, usual, strict=True)]
            lines.append(f"  {precision:10}{''.join(columns)}")
    return "\n".join(lines[1:])


def _means(rates: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.mean(column) for column in zip(*rates, strict=True)]


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's options, and what it gives to the example."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options, given = parser.parse_known_args(arguments)
    if unknown := set(options.tasks) - TASKS.keys():
        parser.error(f"no task {', '.join(sorted(unknown))}: give {', '.join(TASKS)}")
    options.tasks = options.tasks or list(TASKS)
    return options, [*given, "--quiet"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options, given = parse(arguments)
    found: dict[str, dict[str, list[list[float]]]] = {}
    for task in options.tasks:
        found[task] = {precision: [] for precision in MANTISSA_BITS}
        for seed in range(options.seeds):
            for precision, rates in found[task].items():
                rates.append(error_rates(task, precision, seed, given))
                print(f"{task}, {precision}, seed {seed}: {rates[-1]}", file=sys.stderr)
    show(as_text(found), found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
