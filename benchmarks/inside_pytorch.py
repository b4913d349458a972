"""A node-by-node Tree-LSTM in PyTorch, before and after dynbatch runs its trees.

`python -m benchmarks.inside_pytorch`. Both sides are PyTorch models with PyTorch's embedding,
output layer, loss and Adam, of the same initial values; they take turns on the same mini-batches. A
third, batched by hand level by level, shows what rewriting the model would bring.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.measure import interleave, require_agreement
from benchmarks.networks import Sizes, initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS


@dataclass(frozen=True)
class Row:
    """Milliseconds of a training step, update included: medians."""

    threads: int
    before_ms: float
    after_ms: float
    by_hand_ms: float

    @property
    def speed(self) -> float:
        """The speed of the model afterwards, as a multiple of before."""
        return self.before_ms / self.after_ms


def measure(
    threads: int, rounds: int, seed: int, sizes: Sizes, num_batches: int = 2, trees: int = 64
) -> Row:
    """One row.

    Raises:
        Disagreement: the models do not compute the same.
    """
    import torch

    from benchmarks.peers.pytorch_inside import InsideTree
    from benchmarks.peers.pytorch_tree import LevelTree, NodeTree

    db.set_num_threads(threads)
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    values = initial_values(sizes, rng)
    before, after, by_hand = [form(sizes, values) for form in (NodeTree, InsideTree, LevelTree)]
    corpus = WORKLOADS["tree"].corpus(REAL_TEXT_SIGMA)
    batches = corpus.random_batches(rng, num_batches, trees)
    require_agreement(before, [after, by_hand], batches[0])
    timings = interleave([before, after, by_hand], batches, batches, rounds, rng)
    return Row(threads, *[timings[side.name].median_ms for side in (before, after, by_hand)])


def table(rows: Sequence[Row], warning: str) -> str:
    """Aligned, a line for each number of threads."""
    lines = [warning] if warning else []
    heads = f"{'node by node, ms':>18}{'with dynbatch':>15}{'× as fast':>11}{'by hand':>10}"
    lines.append(f"{'threads':>7}{heads}")
    for row in rows:
        times = f"{row.before_ms:>18.1f}{row.after_ms:>15.1f}{row.speed:>11.1f}"
        lines.append(f"{row.threads:>7}{times}{row.by_hand_ms:>10.1f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inside_pytorch", description=__doc__
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7, help="times each mini-batch is timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args(arguments)
    others = OtherWork()
    sizes = WORKLOADS["tree"].sizes
    rows = [measure(threads, options.rounds, options.seed, sizes) for threads in options.threads]
    found = [{**asdict(row), "speed": round(row.speed, 3)} for row in rows]
    show(table(rows, others.warning()), found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
