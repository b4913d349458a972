"""A model in two stages on two processes: `python -m benchmarks.pipeline [--layers 2]`.

Training steps, without the update, of a language model of bi-LSTMs that is cut in the middle, with
1, 2, 4, ... micro-batches, each process with one thread, beside one process with one thread that
has the whole model and mini-batch. A stage waits for (p - 1) / (m + p - 1) of the time if all its m
micro-batches and all p stages cost the same and nothing else costs anything; the share of the time
that was waited, of both processes together, is reported beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import Corpus
from benchmarks.report import show
from dynbatch import models, parallel
from dynbatch import nodes as F
from dynbatch.parallel.launcher import launch

RANKS = 2
WORDS, TAGS = 2_000, 45


class Stages(models.Module):
    """An embedding and bi-LSTMs, then as many again and the output layer."""

    def __init__(self, layers: int, width: int) -> None:
        self.embed = models.Embedding(WORDS, width, rng=0)
        self.first = models.LSTM(width, width // 2, layers, bidirectional=True, rng=1)
        self.second = models.LSTM(width, width // 2, layers, bidirectional=True, rng=2)
        self.output = models.Linear(width, TAGS, rng=3)

    def begin(self, graph: db.Graph, sentence: Any) -> Any:
        return self.first(self.embed(graph, sentence[0]))

    def end(self, graph: db.Graph, sentence: Any, h: Any) -> Any:
        return F.cross_entropy(self.output(self.second(h)), sentence[1])

    def whole(self, graph: db.Graph, sentence: Any) -> Any:
        return self.end(graph, sentence, self.begin(graph, sentence))


def measure(
    communicator: parallel.Communicator, options: argparse.Namespace
) -> dict[str, Any] | None:
    """Milliseconds of a step, and the share of them that was waited; on rank 0, None elsewhere."""
    db.set_num_threads(1)
    rank, is_first = communicator.rank, communicator.rank == 0
    model = Stages(options.layers, options.width)
    stage = [model.begin, model.end][rank]
    corpus = Corpus(WORDS, TAGS, True, kind=options.lengths)
    rng = np.random.default_rng(options.seed)
    alone: list[float] = []
    results: dict[int, list[parallel.PipelineResult]] = {m: [] for m in options.micro_batches}
    for turn in range(options.rounds + 1):
        (batch,) = corpus.random_batches(rng, 1, options.batch)
        examples = list(batch.sentences())
        lengths = [len(words) for words, _ in examples]
        for count in options.micro_batches:
            communicator.barrier()
            result = parallel.pipeline(communicator, stage, examples, count, lengths)
            forget_gradients(model)
            if turn > 0:  # the first is not counted
                results[count].append(result)
        if is_first:
            begun = time.perf_counter()
            with db.Graph() as graph:
                graph.backward(F.sum([model.whole(graph, example) for example in examples]))
            forget_gradients(model)
            alone += [time.perf_counter() - begun] * (turn > 0)
    gathered = communicator.gather_objects(results)
    return summary(gathered, alone, options) if is_first else None


def forget_gradients(model: models.Module) -> None:
    for parameter in model.parameters():
        parameter.zero_grad()


def summary(
    gathered: Sequence[dict[int, list[parallel.PipelineResult]]], alone: Sequence[float],
    options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """The figures of all ranks, as numbers of JSON."""
    ranks, rows = len(gathered), []
    for count in options.micro_batches:
        steps = [result for results in gathered for result in results[count]]
        waited = sum([step.waited for step in steps]) / sum([step.seconds for step in steps])
        ends = zip(*[results[count] for results in gathered], strict=True)
        longest = [max([step.seconds for step in of_one]) for of_one in ends]
        rows.append({
            "micro_batches": count,
            "ms": round(1e3 * statistics.median(longest), 1),
            "waited": round(waited, 3),
            "formula": round((ranks - 1) / (count + ranks - 1), 3),
        })  # fmt: skip
    return {"ranks": ranks, "alone_ms": round(1e3 * statistics.median(alone), 1), "rows": rows}


def as_text(found: dict[str, Any]) -> str:
    """A line for each number of micro-batches."""
    lines = [f"one process  {found['alone_ms']:8.1f} ms"]
    for row in found["rows"]:
        speed = found["alone_ms"] / row["ms"]
        name = f"{found['ranks']} x {row['micro_batches']}"
        lines.append(
            f"{name:12}{row['ms']:10.1f} ms, {speed:.2f} times as fast, "
            f"{row['waited']:6.1%} waited, {row['formula']:6.1%} by the formula"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--layers", type=int, default=2, help="LSTMs of a stage")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64, help="sentences of a mini-batch")
    parser.add_argument("--lengths", choices=("lognormal", "equal"), default="lognormal")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=9, help="mini-batches that are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure as a rank of a run, of which the first one prints, or start one."""
    options = parse(arguments)
    if "RANK" not in os.environ:
        other = OtherWork()
        status = launch([sys.executable, "-m", "benchmarks.pipeline", *arguments], RANKS)
        if warning := other.warning():
            print(warning, file=sys.stderr)
        return status
    with parallel.connect() as communicator:
        found = measure(communicator, options)
    if found is not None:
        show(as_text(found), found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
