"""What dynbatch is to reach on a CPU: `python -m benchmarks.goals [--only tagger] [--rounds 3]`.

Each measurement is a command of its own, on a machine that does nothing else. Their tables go to
stderr as they come, the goals to stdout at the end. `--against FOLDER` times another checkout
beside this one in every run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu.goals import line


class Measurement(NamedTuple):
    """One run of a workload beside its peers.

    name:    what the goals call it.
    options: of `benchmarks.run`, but rounds.
    faster:  times each peer's speed that is to be reached; of other peers it is told.
    """

    name: str
    options: str
    faster: Mapping[str, float] = {}


LONG = "short sentences and a long one"
TRANSFORMER = "transformer --heads 8"
TWO_THREADS = "Transformer, 2 threads"

MEASUREMENTS = (
    Measurement(
        "tagger, 2 threads",
        "tagger --threads 2",
        {"pytorch-bucketed": 1.05, "pytorch-padded": 2.8, "pytorch-packed": 3.2},
    ),
    Measurement("tagger, 1 thread", "tagger --threads 1", {"pytorch-bucketed": 0.87}),
    Measurement(
        "seq2seq, 2 threads",
        "seq2seq --threads 2",
        {"pytorch-bucketed": 1.0, "pytorch-padded": 4.0, "pytorch-select": 2.0},
    ),
    Measurement("seq2seq, 1 thread", "seq2seq --threads 1"),
    Measurement("tree, 1 thread", "tree --threads 1", {"pytorch-levels": 0.9}),
    Measurement("tree, 2 threads", "tree --threads 2"),
    Measurement(
        TWO_THREADS,
        f"{TRANSFORMER} --threads 2",
        {"pytorch-bucketed": 0.9, "pytorch-by-sentence": 1.2, "pytorch-padded": 2.5},
    ),
    Measurement("Transformer, 1 thread", f"{TRANSFORMER} --threads 1"),
    Measurement(
        "Transformer, lengths alike",
        f"{TRANSFORMER} --threads 2 --lengths equal",
        {"pytorch-padded": 0.95},
    ),
    Measurement("BERT layer", "bert_layer --threads 2"),
    Measurement(
        "BERT layer, lengths alike",
        "bert_layer --threads 2 --lengths equal",
        {"pytorch-padded": 0.95},
    ),
    Measurement("a user's cell", "user_cell --threads 2", {"models-lstm": 0.9}),
)
# A measurement on two threads, the same on one, and what the second is to gain.
GAINS = (
    ("tagger, 2 threads", "tagger, 1 thread", 1.6),
    (TWO_THREADS, "Transformer, 1 thread", 1.6),
)
MOST_HOST, MOST_NODES = 0.05, 10

Found = Mapping[str, dict[str, Any]]
"""The JSON of each measurement."""


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The arguments of `python -m` for each measurement wanted."""
    more = ["--rounds", str(options.rounds), "--json"]
    if options.against:
        more += ["--against", options.against]
    found = {
        name: ["benchmarks.run", *of_workload.split(), *more]
        for name, of_workload, _ in MEASUREMENTS
        if of_workload.startswith(options.only)
    }
    if "one_long".startswith(options.only):
        found[LONG] = ["benchmarks.one_long", "--threads", "2", "--json"]
    return found


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
    for name, _, faster in MEASUREMENTS:
        if name in found:
            yield from _beside(name, ratios(found[name]), faster)
    for two, one, least in GAINS:
        if two in found and one in found:
            gain = found[one]["dynbatch_ms"] / found[two]["dynbatch_ms"]
            yield line(f"{two}: times one thread's speed", gain, f">= {least}", gain >= least)
    if TWO_THREADS in found:
        share, nodes = [found[TWO_THREADS][key] for key in ("host_share", "nodes_per_sentence")]
        yield line("host's share of the step", share, f"<= {MOST_HOST}", share <= MOST_HOST)
        yield line("nodes a sentence", nodes, f"<= {MOST_NODES}", nodes <= MOST_NODES)
    if LONG in found:
        for what in ("time", "memory"):
            ratio, most = found[LONG][f"{what}_ratio"], found[LONG]["goal"]
            yield line(f"{LONG}: {what}, together over apart", ratio, f"<= {most}", ratio <= most)


def _beside(name: str, ratios: Mapping[str, float], faster: Mapping[str, float]) -> Iterator[str]:
    for peer, ratio in ratios.items():
        what = f"{name}: times the speed of {peer}"
        if peer in faster:
            yield line(what, ratio, f">= {faster[peer]}", ratio >= faster[peer])
        else:
            yield f"{'told':8} {what} {ratio:.2f}"


def ratios(run: Mapping[str, Any]) -> dict[str, float]:
    """Of each peer that ran, its time over dynbatch's."""
    peers = run["peers_ms"].items()
    return {name: ms / run["dynbatch_ms"] for name, ms in peers if ms is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goals", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORKLOAD", help="not the others")
    parser.add_argument("--rounds", type=int, default=3, help="times each batch is timed")
    parser.add_argument("--against", default="", metavar="FOLDER", help="another checkout")
    options = parser.parse_args(arguments)
    found = {name: measure(command) for name, command in commands(options).items()}
    print("\n".join(goals(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
