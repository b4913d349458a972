"""Planning within a limit against a step without one: `python -m benchmarks.memory.limit_search`.

Two networks whose loops are written out of nodes, hundreds of batches each, a Transformer and a
tree. Steps and searches take turns, each step with a graph of its own; what a search finds is told.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from unittest.mock import patch

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.planning import recompute_search
from dynbatch.errors import MemoryLimitError

SHARES = (0.9, 0.6, 0.5, 0.3)
WORDS, TAGS = 100, 20


@dataclass(frozen=True)
class Row:
    """One limit. Times are medians.

    Args:
        limit:   of the peak without one, and `held`, what would be held.
        ratio:   planning, of the step without a limit.
        plans:   that the search made.
        saving:  what would be done.
    """

    workload: str
    batches: int
    step_ms: float
    limit: float
    held: float
    ratio: float
    plans: int
    saving: str


class Stepwise(models.Module):
    """A tagger whose recurrent layer is a loop over the words: SRU or GRU."""

    def __init__(self, hidden: int, gates: int) -> None:
        generator = np.random.default_rng(0)

        def parameter(name: str, *shape: int) -> db.Parameter:
            return db.Parameter(0.1 * generator.standard_normal(shape).astype(np.float32), name)

        self.words = parameter("words", WORDS, hidden)
        self.inputs = [models.Linear(hidden, hidden) for _ in range(3)]
        self.states = [models.Linear(hidden, hidden) for _ in range(gates)]
        self.weights = [parameter(name, hidden) for name in ("forget", "reset")]
        self.output = models.Linear(hidden, TAGS)

    def loss(self, graph: db.Graph, words: Sequence[int], tags: Sequence[int]) -> db.Node:
        """Cross-entropy of one sentence, as the mean over its words."""
        x = F.lookup(graph, self.words, words)
        streams = [linear(x) for linear in self.inputs]
        weights = [F.parameter(graph, weight) for weight in self.weights]
        state = F.input(graph, np.zeros(x.width, np.float32))
        outputs = []
        for t in range(len(words)):
            step = self.gru if self.states else self.sru
            state, output = step([stream[t] for stream in streams], state, weights)
            outputs.append(output)
        return F.cross_entropy(self.output(F.stack(outputs)), tags)

    def sru(
        self, x: Sequence[db.Node], c: db.Node, weights: Sequence[db.Node]
    ) -> tuple[db.Node, db.Node]:
        """Lei et al. 2018 (arXiv:1709.02755), equations 1 to 4."""
        forget, reset = [F.sigmoid(x[k] + weights[k] * c) for k in range(2)]
        c = forget * c + (1.0 - forget) * x[2]
        return c, reset * F.tanh(c) + (1.0 - reset) * x[2]

    def gru(
        self, x: Sequence[db.Node], h: db.Node, weights: Sequence[db.Node]
    ) -> tuple[db.Node, db.Node]:
        """The formulas of `torch.nn.GRU`."""
        update, reset = [F.sigmoid(x[k] + self.states[k](h)) for k in range(2)]
        candidate = F.tanh(x[2] + reset * self.states[2](h))
        h = update * h + (1.0 - update) * candidate
        return h, h


MakeLoss = Callable[[db.Graph], db.Node]


def stepwise(hidden: int, gates: int, sentences: int, longest: int) -> MakeLoss:
    """The mean loss of a mini-batch of sentences up to a length."""
    model = Stepwise(hidden, gates)
    generator = np.random.default_rng(1)
    lengths = np.linspace(max(1, longest // sentences), longest, sentences).astype(int)
    batch = [
        (generator.integers(0, WORDS, n).tolist(), generator.integers(0, TAGS, n).tolist())
        for n in lengths.tolist()
    ]
    return lambda graph: F.mean([model.loss(graph, *sentence) for sentence in batch])


def of_workload(name: str, sentences: int) -> MakeLoss:
    """The mean loss of one of the benchmarked workloads."""
    workload, rng = WORKLOADS[name], np.random.default_rng(1)
    ours, _, _ = workload.build(rng, [], 1)
    (batch,) = workload.corpus(REAL_TEXT_SIGMA).random_batches(rng, 1, sentences)
    return lambda graph: ours.mean_loss(graph, batch)


MEASURED: Mapping[str, Callable[[], MakeLoss]] = {
    "SRU, step by step": lambda: stepwise(1024, 0, 9, 70),
    "GRU, step by step": lambda: stepwise(1024, 3, 32, 40),
    "Transformer": lambda: of_workload("transformer", 32),
    "tree": lambda: of_workload("tree", 64),
}


def measure(name: str, loss_of: MakeLoss, rounds: int) -> list[Row]:
    """A row for each limit, after one round that is not counted."""
    seconds: dict[float, list[float]] = {share: [] for share in (0.0, *SHARES)}
    plans, held, saving = {}, {}, {}
    peak = batches = 0
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        with db.Graph() as graph:
            graph.backward(loss_of(graph))
            peak, batches = graph.peak_bytes, graph.statistics.batches
        seconds[0.0].append(time.perf_counter() - begin)
        with db.Graph() as graph:
            loss = loss_of(graph)
            for share in SHARES:
                counted = recompute_search.plan_lifetimes
                with patch.object(recompute_search, "plan_lifetimes", wraps=counted) as made:
                    begin = time.perf_counter()
                    try:
                        use = graph.estimate(loss, memory_limit=int(share * peak))
                        held[share], saving[share] = use.peak_bytes / peak, use.saving
                    except MemoryLimitError as error:
                        held[share], saving[share] = error.least_bytes / peak, "too little"
                    seconds[share].append(time.perf_counter() - begin)
                plans[share] = made.call_count
    medians = {share: statistics.median(times[1:]) for share, times in seconds.items()}
    return [
        Row(
            name, batches, 1e3 * medians[0.0], share, held[share],
            medians[share] / medians[0.0], plans[share], saving[share],
        )
        for share in SHARES
    ]  # fmt: skip


def table(rows: Sequence[Row], warning: str) -> str:
    """Aligned, one line a limit."""
    lines = [warning] if warning else []
    lines.append(
        f"{'':20}{'batches':>8}{'step ms':>9}{'limit':>7}{'held':>7}{'planning':>10}{'plans':>7}"
    )
    for row in rows:
        lines.append(
            f"{row.workload:20}{row.batches:>8}{row.step_ms:>9.1f}{row.limit:>7.1f}{row.held:>7.3f}"
            f"{row.ratio:>10.2f}{row.plans:>7}  {row.saving}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory.limit_search", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="times each is timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    others = OtherWork()
    rows = [row for name, make in MEASURED.items() for row in measure(name, make(), options.rounds)]
    show(table(rows, others.warning()), [asdict(row) for row in rows], options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
