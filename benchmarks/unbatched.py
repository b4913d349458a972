"""Batched against one by one, little mini-batches included: `python -m benchmarks.unbatched`.

The same models on the same sentences with the default policy and with `policy="one_by_one"`, which
runs every node apart, taking turns. No case should be slower batched than it is one by one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.measure import interleave, require_agreement
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.contender import DynbatchContender
from dynbatch.errors import BatchingWarning

TINY = 8


@dataclass(frozen=True)
class Case:
    """One mini-batch of every workload.

    Args:
        lengths: of the sentences, both sides; drawn as for other benchmarks if there are none.
        is_tiny: whether vocabularies and widths are at most 8.
    """

    name: str
    lengths: tuple[int, ...] = ()
    is_tiny: bool = False


CASES = (
    Case("64 sentences"),
    Case("64 of 22 words", (22,) * 64),
    Case("64 of 22 words, tiny widths", (22,) * 64, is_tiny=True),
    Case("8 sentences, tiny widths", (3, 9, 14, 18, 22, 26, 35, 52), is_tiny=True),
    Case("2 sentences, tiny widths", (9, 5), is_tiny=True),
    Case("2 of one word, tiny widths", (1, 1), is_tiny=True),
    Case("one sentence", (22,)),
    Case("one sentence, tiny widths", (22,), is_tiny=True),
    Case("one word", (1,)),
)
COMPARED = ("tagger", "seq2seq", "tree", "tagger_steps", "seq2seq_steps")


@dataclass(frozen=True)
class Row:
    """Milliseconds of building the graph, forward and backward: medians. No update."""

    workload: str
    case: str
    batched_ms: float
    one_by_one_ms: float

    @property
    def speed(self) -> float:
        """The speed of the default policy, as a multiple of one by one."""
        return self.one_by_one_ms / self.batched_ms


def measure(workload: str, case: Case, rounds: int, seed: int) -> Row:
    """One row.

    Raises:
        Disagreement: the two policies do not compute the same.
    """
    model = WORKLOADS[workload]
    if case.is_tiny:
        small = {name: min(size, TINY) for name, size in asdict(model.sizes).items()}
        model = replace(model, sizes=replace(model.sizes, **small))
    rng = np.random.default_rng(seed)
    values = initial_values(model.sizes, rng)
    sides = []
    for policy in (DynbatchContender.policy, "one_by_one"):
        side = model.ours(model.sizes, values, "cpu")
        side.name = side.policy = policy
        sides.append(side)
    corpus = model.corpus(REAL_TEXT_SIGMA)
    lengths = np.array([[length] * 2 for length in case.lengths])
    batch = corpus.fill(rng, lengths) if case.lengths else corpus.random_batches(rng, 1, 64)[0]
    require_agreement(sides[0], sides[1:], batch)
    interleave(sides, [batch], [batch], rounds, rng, settle_seconds=0.0)
    batched, apart = [
        1e3 * statistics.median([c.step_seconds - c.update_seconds for c in side.costs[-rounds:]])
        for side in sides
    ]
    return Row(workload, case.name, batched, apart)


def table(rows: Sequence[Row], warning: str) -> str:
    """Aligned, the last line the case with least gain."""
    lines = [warning] if warning else []
    lines += [f"{'':46}{'batched ms':>12}{'one by one':>12}{'× as fast':>12}"]
    for row in rows:
        times = f"{row.batched_ms:>12.2f}{row.one_by_one_ms:>12.2f}{row.speed:>12.2f}"
        lines.append(f"{row.workload:16}{row.case:30}{times}")
    least = min(rows, key=lambda row: row.speed)
    return "\n".join([*lines, f"least gain {least.speed:.2f}: {least.workload}, {least.case}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unbatched", description=__doc__)
    parser.add_argument("workloads", nargs="*", type=_compared, help=", ".join(COMPARED))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="times each is timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    others = OtherWork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchingWarning)  # one by one, as it is meant here
        rows = [
            measure(workload, case, options.rounds, options.seed)
            for workload in options.workloads or COMPARED
            for case in CASES
        ]
    found = [{**asdict(row), "speed": round(row.speed, 3)} for row in rows]
    show(table(rows, others.warning()), found, options.json)
    return 0


def _compared(name: str) -> str:
    """A workload's name; `choices` would refuse that there is none, which means all."""
    if name not in COMPARED:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COMPARED)}")
    return name


if __name__ == "__main__":
    sys.exit(main())
