"""Shards of equal cost: `python -m benchmarks.shards [tagger seq2seq transformer] [--json FILE]`.

A model's `parallel.Cost` is measured on some shards. Then mini-batches that it has not seen are cut
into shards by that cost, by tokens and by sentences, and all shards really run on one thread, one
after the other: graph, loss and backward. Two tables tell how near the predicted cost of a shard is
to its time, and the dearest shard's time over the mean: how long the other ranks would wait.

Times are of the processor, the least of several rounds in which all shards take turns, each round
in another order; `--wall` takes those of the clock. A busy machine changes both, by a fifth from
one minute to the next: how far the least times of two halves of the rounds are apart stands beside
the errors. For the first table the shards of `Cost.measured` take turns with the new ones, and the
cost is fitted to their times anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import dynbatch as db
from benchmarks.environment import OtherWork, kernel_lines
from benchmarks.lengths import Array, Batch, Corpus, draw_lengths
from benchmarks.networks import TransformerSizes
from benchmarks.workloads import WORKLOADS
from dynbatch.parallel import Cost, balanced
from dynbatch.parallel.cost import COUNT, REPEATS
from examples.corpora import libreoffice

MODELS = ("tagger", "seq2seq", "transformer")
LENGTHS = ("libreoffice", "lognormal")
POOL = 4096  # sentences that the shards of `Cost.measured` are drawn from

Cuts = dict[str, list[list[int]]]


class Found(NamedTuple):
    """The result of one model on one kind of lengths.

    Args:
        cost:      as it was measured.
        errors:    of each shard that was not seen before: predicted over measured seconds, minus 1.
        repeated:  of each one: its time in every other round over that in the rest, minus 1.
        imbalance: for each way of cutting, the dearest shard over the mean, of each mini-batch.
        seconds:   for each way, the dearest shard's, of each mini-batch.
    """

    model: str
    lengths: str
    cost: dict[str, Any]
    errors: list[float]
    repeated: list[float]
    imbalance: dict[str, list[float]]
    seconds: dict[str, list[float]]


@cache
def real_lengths(folder: str | None = None) -> Array:
    """(19,000, 2) tokens of LibreOffice's messages, English and German."""
    pairs = libreoffice.load(folder)
    return np.array([(len(source), len(target) + 1) for source, target in pairs])


def drawn_lengths(kind: str, rng: np.random.Generator, count: int, folder: str | None) -> Array:
    """(count, 2) lengths of sources and targets."""
    if kind == "libreoffice":
        real = real_lengths(folder)
        return real[rng.integers(len(real), size=count)]
    return draw_lengths(rng, 2 * count).reshape(count, 2)


def cuts(cost: Cost, lengths: Array, size: int) -> Cuts:
    """A mini-batch of (N, K) lengths cut into shards in each of three ways."""
    count = len(lengths)
    return {
        "cost": cost.shards(lengths, size),
        "tokens": balanced(lengths.sum(axis=1), size),
        "sentences": [list(range(count * r // size, count * (r + 1) // size)) for r in range(size)],
    }


def measure(model: str, kind: str, options: argparse.Namespace) -> Found:
    """Measure a model's cost, then run mini-batches in shards of each kind."""
    db.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    count = options.ranks * options.sentences
    pool = drawn_lengths(kind, rng, POOL + options.batches * count, options.folder)
    step, corpus = _model(model, rng, int(pool.max()))
    if corpus.is_aligned:
        pool[:, 1] = pool[:, 0]
    sides = 1 if corpus.is_aligned else 2
    clock = time.perf_counter if options.wall else time.process_time
    sentences = list(corpus.fill(rng, pool).sentences())
    seen: list[list[Any]] = []
    total = 1 + REPEATS * COUNT
    with tqdm(desc=f"{model}, {kind}: its cost", total=total, unit="shard", ncols=79) as bar:

        def noted(shard: list[int]) -> None:
            step([sentences[i] for i in shard])
            seen.append(shard)
            bar.update()

        places, known = range(POOL), pool[:POOL, :sides]
        cost = Cost.measured(noted, places, known, options.sentences, options.seed, clock)
    found = Found(model, kind, asdict(cost), [], [], {}, {})
    for k in range(options.batches):
        first = POOL + k * count
        lengths = pool[first : first + count, :sides]
        of_each = cuts(cost, lengths, options.ranks)
        new = [[first + i for i in shard] for cut in of_each.values() for shard in cut]
        name = f"{model}, {kind}: mini-batch {k + 1} of {options.batches}"
        shards = [[sentences[i] for i in shard] for shard in seen[1 : 1 + COUNT] + new]
        rounds = _seconds(step, shards, clock, options.rounds, name)
        took = rounds.min(axis=0)
        refitted = Cost.fitted(
            [pool[s, :sides] for s in seen[1 : 1 + COUNT]], took[:COUNT].tolist()
        )
        took = took[COUNT:]
        if options.rounds > 1:
            halves = [rounds[half::2, COUNT:].min(axis=0) for half in (0, 1)]
            found.repeated.extend((halves[0] / halves[1] - 1).tolist())
        found.errors.extend(
            [refitted.of(pool[s, :sides]) / t - 1 for s, t in zip(new, took, strict=True) if s]
        )
        for way, part in zip(of_each, took.reshape(len(of_each), -1), strict=True):
            found.imbalance.setdefault(way, []).append(float(part.max() / part.mean()))
            found.seconds.setdefault(way, []).append(float(part.max()))
    return found


def _model(
    name: str, rng: np.random.Generator, longest: int
) -> tuple[Callable[[Sequence[Any]], None], Corpus]:
    """A training step on a shard, without the update, and what its sentences are made of."""
    workload = WORKLOADS[name]
    if isinstance(workload.sizes, TransformerSizes):
        workload = replace(workload, sizes=replace(workload.sizes, longest=longest))
    ours, _, _ = workload.build(rng, (), 1)

    def step(shard: Sequence[Any]) -> None:
        if shard:
            sources, targets = zip(*shard, strict=True)
            with db.Graph() as graph:
                graph.backward(ours.mean_loss(graph, Batch(list(sources), list(targets))))
            ours._adam.zero_grad()

    return step, workload.corpus(workload.sigma)


def _seconds(
    step: Callable[[Sequence[Any]], None], shards: Sequence[Sequence[Any]],
    clock: Callable[[], float], rounds: int, name: str,
) -> Array:  # fmt: skip
    """(rounds, shards) seconds: all shards take turns, in each round in another order."""
    seconds = np.empty((rounds, len(shards)))
    orders = np.random.default_rng(0)
    with tqdm(desc=name, total=seconds.size, unit="shard", ncols=79) as bar:
        for one in seconds:
            for k in orders.permutation(len(shards)).tolist():
                begin = clock()
                step(shards[k])
                one[k] = clock() - begin
                bar.update()
    return seconds


def as_text(found: Sequence[Found]) -> str:
    """Both tables."""
    lines = ["predicted over measured seconds of a shard, minus 1, absolute"]
    lines += [
        "model        lengths      shards   mean  median   90 %   most  repeated: mean   90 %"
    ]
    for each in found:
        errors, repeated = np.abs(each.errors), np.abs(each.repeated or [np.nan])
        marks = [
            *np.percentile(errors, [50, 90, 100]),
            repeated.mean(),
            np.percentile(repeated, 90),
        ]
        numbers = "  ".join([f"{value:>5.1%}" for value in (errors.mean(), *marks)])
        lines.append(f"{each.model:<12} {each.lengths:<12} {len(errors):>6}  {numbers}")
    lines += ["", "the dearest shard over the mean, by what the shards are equal in;"]
    lines += ["in brackets its time against that of shards of equal cost"]
    lines += ["model        lengths        cost        tokens     sentences"]
    for each in found:
        best = np.mean(each.seconds["cost"])
        cells = [f"{np.mean(each.imbalance['cost']):>6.3f}"]
        for way in ("tokens", "sentences"):
            ratio = np.mean(each.seconds[way]) / best
            cells.append(f"{np.mean(each.imbalance[way]):.3f} ({ratio:.2f})")
        lines.append(f"{each.model:<12} {each.lengths:<12} {'  '.join(cells)}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("models", nargs="*", help=", ".join(MODELS) + "; by default all")
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--ranks", type=int, default=8, help="shards of a mini-batch")
    parser.add_argument("--sentences", type=int, default=64, help="in a shard, on average")
    parser.add_argument("--batches", type=int, default=2, help="mini-batches that are cut")
    parser.add_argument("--rounds", type=int, default=6, help="times that each shard runs")
    parser.add_argument("--wall", action="store_true", help="the clock's seconds")
    parser.add_argument("--folder", help="of LibreOffice's unpacked package; fetched by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args(arguments)
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no model is called {', '.join(sorted(unknown))}: {', '.join(MODELS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    others = OtherWork()
    found = [
        measure(model, kind, options)
        for model in options.models or MODELS
        for kind in options.lengths
    ]
    print(as_text(found))
    print("\n".join(["", *kernel_lines(), others.warning()]).rstrip())
    if options.json:
        result = {
            "options": {key: value for key, value in vars(options).items() if key != "json"},
            "other_work_cores": round(others.cores(), 2),
            "found": [each._asdict() for each in found],
        }
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
