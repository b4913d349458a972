"""What Transformers are to reach on a CPU: `python -m benchmarks.goals [--heads 8] [--rounds 3]`.

Each measurement is a command of its own, on a machine that does nothing else: the Transformer on
two threads and on one, on lengths all alike, and on short sentences with a long one; and a layer
of BERT-base. Their tables go to stderr as they come, the goals to stdout at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.goals import line

Found = Mapping[str, dict[str, Any]]
"""The JSON of each measurement."""

TWO, ONE, ALIKE, BERT, BERT_FULL, LONG = (
    "two threads", "one thread", "lengths alike", "BERT layer", "BERT layer, all full", "one long",
)  # fmt: skip
FASTER = {"pytorch-padded": 1.7, "pytorch-bucketed": 0.55}  # times the peer's speed
MOST_HOST, MOST_NODES, THREADS_GAIN = 0.05, 10, 1.5


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The arguments of `python -m` for each measurement."""
    rounds = ["--rounds", str(options.rounds), "--json"]
    transformer = ["benchmarks.run", "transformer", "--heads", str(options.heads), *rounds]
    bert = ["benchmarks.run", "bert_layer", "--threads", "2", *rounds]
    alike = ["--lengths", "equal"]
    return {
        TWO: [*transformer, "--threads", "2"],
        ONE: [*transformer, "--threads", "1"],
        ALIKE: [*transformer, "--threads", "2", *alike],
        LONG: ["benchmarks.one_long", "--threads", "2", "--json"],
        BERT: bert,
        BERT_FULL: [*bert, *alike],
    }


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run one command; what it printed.

    Raises:
        CalledProcessError: it failed.
    """
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def goals(found: Found) -> Iterator[str]:
    """A line for each goal, and for each ratio that is only told."""
    two, long = found[TWO], found[LONG]
    for peer, ratio in ratios(two).items():
        least = FASTER.get(peer)
        if least is None:
            yield f"{'told':8} {TWO}: times the speed of {peer} {ratio:.2f}"
        else:
            yield line(f"{TWO}: times the speed of {peer}", ratio, f">= {least}", ratio >= least)
    gain = found[ONE]["dynbatch_ms"] / two["dynbatch_ms"]
    yield line("two threads, times one", gain, f">= {THREADS_GAIN}", gain >= THREADS_GAIN)
    share, nodes = two["host_share"], two["nodes_per_sentence"]
    yield line("host's share of the step", share, f"<= {MOST_HOST}", share <= MOST_HOST)
    yield line("nodes a sentence", nodes, f"<= {MOST_NODES}", nodes <= MOST_NODES)
    for what in ("time", "memory"):
        ratio = long[f"{what}_ratio"]
        text = f"short sentences and a long one: {what}, together over apart"
        yield line(text, ratio, f"<= {long['goal']}", ratio <= long["goal"])
    for name in (ALIKE, BERT, BERT_FULL):
        for peer, ratio in ratios(found[name]).items():
            yield f"{'told':8} {name}: times the speed of {peer} {ratio:.2f}"


def ratios(run: Mapping[str, Any]) -> dict[str, float]:
    """Of each peer that ran, its time over dynbatch's."""
    peers = run["peers_ms"].items()
    return {name: ms / run["dynbatch_ms"] for name, ms in peers if ms is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goals", description=__doc__)
    parser.add_argument("--heads", type=int, default=4, help="of the Transformer")
    parser.add_argument("--rounds", type=int, default=3, help="times each batch is timed")
    options = parser.parse_args(arguments)
    found = {name: measure(command) for name, command in commands(options).items()}
    print("\n".join(goals(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
