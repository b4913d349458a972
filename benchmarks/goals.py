"""Goals of dynbatch on a CPU: `python -m benchmarks.goals [--only tagger] [--rounds 3]`.

Each measurement is a command of its own, on a machine that does nothing else. Their tables go to
stderr as they come, the goals to stdout at the end. `--against FOLDER` times another checkout
beside this one in every run; what is compared with another checkout alone runs only then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu.goals import line


class Goal(NamedTuple):
    """A number that must be reached, and the one that is aimed at."""

    must: float
    aim: float


class Measurement(NamedTuple):
    """One run of a workload beside its peers.

    name:    what the goals call it.
    options: of `benchmarks.run`, but rounds.
    faster:  times each peer's speed that is to be reached; of other peers it is told.
    """

    name: str
    options: str
    faster: Mapping[str, Goal] = {}


LONG = "short sentences and a long one"
SMALL = "little data, 1 thread"
DEMO = "the demo, whole"
PROCESSES = "two processes of one thread"
TRANSFORMER = "transformer --heads 8"
TWO_THREADS = "Transformer, 2 threads"
ALIKE = {"pytorch-padded": Goal(0.95, 1.0)}

MEASUREMENTS = (
    Measurement(
        "tagger, 2 threads",
        "tagger --threads 2",
        {
            "pytorch-bucketed": Goal(1.05, 1.3),
            "pytorch-padded": Goal(2.8, 4.0),
            "pytorch-packed": Goal(3.2, 4.0),
        },
    ),
    Measurement("tagger, 1 thread", "tagger --threads 1", {"pytorch-bucketed": Goal(0.87, 1.1)}),
    # Time at most 0.75 and 0.9 of PyTorch's.
    Measurement("scans, 2 threads", "lstm --threads 2", {"pytorch-bucketed": Goal(1.33, 1.67)}),
    Measurement("scans, 1 thread", "lstm --threads 1", {"pytorch-bucketed": Goal(1.11, 1.25)}),
    Measurement(
        "seq2seq, 2 threads",
        "seq2seq --threads 2",
        {
            "pytorch-bucketed": Goal(1.0, 1.3),
            "pytorch-padded": Goal(4.0, 6.0),
            "pytorch-select": Goal(2.0, 3.0),
        },
    ),
    Measurement("seq2seq, 1 thread", "seq2seq --threads 1"),
    Measurement("tree, 1 thread", "tree --threads 1", {"pytorch-levels": Goal(0.9, 1.5)}),
    Measurement("tree, 2 threads", "tree --threads 2"),
    Measurement(
        TWO_THREADS,
        f"{TRANSFORMER} --threads 2",
        {
            "pytorch-bucketed": Goal(0.9, 1.0),
            "pytorch-by-sentence": Goal(1.2, 1.5),
            "pytorch-padded": Goal(2.5, 3.0),
        },
    ),
    Measurement("Transformer, 1 thread", f"{TRANSFORMER} --threads 1"),
    Measurement("Transformer, lengths alike", f"{TRANSFORMER} --threads 2 --lengths equal", ALIKE),
    Measurement("BERT layer", "bert_layer --threads 2"),
    Measurement("BERT layer, lengths alike", "bert_layer --threads 2 --lengths equal", ALIKE),
    Measurement("a user's cell", "user_cell --threads 2", {"models-lstm": Goal(0.9, 1.0)}),
)
# Measurements whose speed without C is compared with another checkout's.
WITHOUT_C = ("tagger, 1 thread", "seq2seq, 1 thread", "tree, 1 thread", "Transformer, 1 thread")
LEAST_WITHOUT_C = 0.85
# A measurement on two threads, the same on one, and what the second is to gain.
GAINS = (
    ("tagger, 2 threads", "tagger, 1 thread", Goal(1.6, 1.8)),
    (TWO_THREADS, "Transformer, 1 thread", Goal(1.6, 1.8)),
)
PROCESSES_FASTER = Goal(1.6, 1.8)  # than one
DEMO_FASTER = Goal(1.6, 2.0)  # than the other checkout's
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
    if "small_data".startswith(options.only):
        found[SMALL] = ["benchmarks.small_data", "--rounds", str(options.rounds), "--json"]
    if "parallel".startswith(options.only):
        found[PROCESSES] = ["benchmarks.parallel", "--json"]
    if options.against:
        alone = {name: found[name] for name in WITHOUT_C if name in found}
        found |= {without_c(name): [*command, "--peers"] for name, command in alone.items()}
        if "demo".startswith(options.only):
            found[DEMO] = ["benchmarks.demo", *more]
    return found


def without_c(name: str) -> str:
    """The goals' name for a measurement with NumPy's kernels alone."""
    return f"{name}, without C"


def measure(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the command of a measurement; what it printed.

    Raises:
        CalledProcessError: it failed.
    """
    command = [sys.executable, "-m", *arguments]
    is_without_c = name in map(without_c, WITHOUT_C)
    native = {"DYNBATCH_NATIVE": "0"} if is_without_c else {}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **native}
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def goals(found: Found) -> Iterator[str]:
    """A line for each goal, and for each ratio that is only told."""
    for name, _, faster in MEASUREMENTS:
        if name in found:
            yield from _beside(name, ratios(found[name]), faster)
        if without_c(name) in found:
            for other, ratio in ratios(found[without_c(name)]).items():
                what = f"{without_c(name)}: times the speed of {other}"
                yield line(what, ratio, f">= {LEAST_WITHOUT_C}", ratio >= LEAST_WITHOUT_C)
    for two, one, goal in GAINS:
        if two in found and one in found:
            gain = found[one]["dynbatch_ms"] / found[two]["dynbatch_ms"]
            yield _towards(f"{two}: times one thread's speed", gain, goal)
    for name, times in found.get(PROCESSES, {}).items():
        what = f"{PROCESSES}, {name}: times one's speed"
        yield _towards(what, times["times_as_fast"], PROCESSES_FASTER)
    if DEMO in found:
        ours, *others = [run["seconds"] for run in found[DEMO].values()]
        yield from [
            _towards(f"{DEMO}: times as fast", other / ours, DEMO_FASTER) for other in others
        ]
    if SMALL in found:
        ours, *others = [row["seconds"] for row in found[SMALL].values()]
        ratio = min(others) / ours
        yield line(f"{SMALL}: times the best peer's speed", ratio, ">= 1", ratio >= 1)
    if TWO_THREADS in found:
        share, nodes = [found[TWO_THREADS][key] for key in ("host_share", "nodes_per_sentence")]
        yield line("host's share of the step", share, f"<= {MOST_HOST}", share <= MOST_HOST)
        yield line("nodes a sentence", nodes, f"<= {MOST_NODES}", nodes <= MOST_NODES)
    if LONG in found:
        for what in ("time", "memory"):
            ratio, most = found[LONG][f"{what}_ratio"], found[LONG]["goal"]
            yield line(f"{LONG}: {what}, together over apart", ratio, f"<= {most}", ratio <= most)


def _beside(name: str, ratios: Mapping[str, float], faster: Mapping[str, Goal]) -> Iterator[str]:
    for peer, ratio in ratios.items():
        what = f"{name}: times the speed of {peer}"
        if peer in faster:
            yield _towards(what, ratio, faster[peer])
        else:
            yield f"{'told':8} {what} {ratio:.2f}"


def _towards(what: str, ratio: float, goal: Goal) -> str:
    return line(what, ratio, f">= {goal.must}, aim {goal.aim}", ratio >= goal.must)


def ratios(run: Mapping[str, Any]) -> dict[str, float]:
    """The time of each peer that ran, over dynbatch's."""
    peers = run["peers_ms"].items()
    return {name: ms / run["dynbatch_ms"] for name, ms in peers if ms is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goals", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORKLOAD", help="not the others")
    parser.add_argument("--rounds", type=int, default=3, help="times each batch is timed")
    parser.add_argument("--against", default="", metavar="FOLDER", help="another checkout")
    options = parser.parse_args(arguments)
    found = {name: measure(name, command) for name, command in commands(options).items()}
    print("\n".join(goals(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
