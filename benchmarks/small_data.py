"""Little data on one thread, from import to a fixed accuracy: `python -m benchmarks.small_data`.

A tagger of 64 units in each direction learns 3,000 sentences whose tags follow from a word and the
one before. Each side is a process of its own: what is measured is its whole life, with imports,
until 97 % of the words of 300 other sentences are right. The sides take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.lengths import Array, Batch, Corpus
from benchmarks.networks import TaggerSizes, initial_values
from benchmarks.report import show

SIDES = ("dynbatch", "pytorch-padded", "pytorch-bucketed")
SIZES = TaggerSizes(vocabulary=500, embedding=64, hidden=64, tags=12)
SENTENCES, OTHERS, BATCH = 3000, 300, 32
RATE, ACCURACY, MOST_EPOCHS = 4e-3, 0.97, 30

Train = Callable[[Batch], object]
Predict = Callable[[Batch], list[Array]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="lives of each side")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="that are learnt")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    if options.side:
        print(json.dumps(live(options.side, options.sentences)))
        return 0
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in (*SIDES[number % 3 :], *SIDES[: number % 3]):
            found[side].append(measured(side, options.sentences))
            print(f"{side}: {found[side][-1]}", file=sys.stderr)
    rows = {
        side: {name: statistics.median([life[name] for life in lives]) for name in lives[0]}
        for side, lives in found.items()
    }
    show(as_text(rows), rows, options.json)
    return 0


def measured(side: str, sentences: int) -> dict[str, float]:
    """One life: what it says of itself, and the seconds from its start to its end."""
    command = [sys.executable, "-m", "benchmarks.small_data", "--side", side]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--sentences", str(sentences)], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = time.perf_counter() - begin
    said: dict[str, float] = json.loads(done.stdout)
    return {"seconds": seconds} | said


def as_text(rows: dict[str, dict[str, float]]) -> str:
    """The table: seconds, epochs, and times dynbatch's seconds."""
    ours = rows["dynbatch"]["seconds"]
    lines = [f"{'':18} {'seconds':>8} {'epochs':>7} {'right':>7} {'× dynbatch':>11}"]
    for side, row in rows.items():
        lines.append(
            f"{side:18} {row['seconds']:8.2f} {row['epochs']:7.0f} {row['accuracy']:7.1%} "
            f"{row['seconds'] / ours:11.2f}"
        )
    return "\n".join(lines)


def live(side: str, sentences: int) -> dict[str, float]:
    """Train until the accuracy is reached; the epochs that took, and the accuracy."""
    rng = np.random.default_rng(1)
    values = initial_values(SIZES, rng)
    data, others = corpus(rng, sentences), corpus(rng, OTHERS)
    train, predict = _dynbatch(values) if side == "dynbatch" else _pytorch(values)
    accuracy, epoch = 0.0, 0
    while accuracy < ACCURACY and epoch < MOST_EPOCHS:
        epoch += 1
        for batch in batches(data, rng, side == "pytorch-bucketed"):
            train(batch)
        right = [
            found == tags
            for batch in batches(others, rng, side != "dynbatch")
            for found, tags in zip(predict(batch), batch.targets, strict=True)
        ]
        accuracy = float(np.concatenate(right).mean())
    return {"epochs": epoch, "accuracy": accuracy}


def corpus(rng: np.random.Generator, sentences: int) -> Batch:
    """Sentences whose tag is the sum of two classes, of the word and of the word before it."""
    corpus = Corpus(SIZES.vocabulary, SIZES.tags, is_aligned=True)
    data = corpus.fill(rng, corpus.lengths(rng, sentences))
    classes = np.random.default_rng(0).integers(0, SIZES.tags, SIZES.vocabulary)
    tags = [classes[words] + np.append(0, classes[words[:-1]]) for words in data.sources]
    return Batch(data.sources, [of_words % SIZES.tags for of_words in tags])


def batches(data: Batch, rng: np.random.Generator, is_bucketed: bool) -> Iterator[Batch]:
    """The data in mini-batches: at random, or of neighbours by length, in random order."""
    order = rng.permutation(data.num_sentences)
    if is_bucketed:
        lengths = np.array([len(words) for words in data.sources])
        order = order[np.argsort(lengths[order], kind="stable")]
    starts = np.arange(0, len(order), BATCH)
    for start in rng.permutation(starts):
        chosen = order[start : start + BATCH]
        yield Batch([data.sources[i] for i in chosen], [data.targets[i] for i in chosen])


def _dynbatch(values: Any) -> tuple[Train, Predict]:
    import dynbatch as db
    from benchmarks.workloads.contender import load_values
    from benchmarks.workloads.tagger import Tagger
    from dynbatch import nodes as F
    from dynbatch import optim

    db.set_num_threads(1)
    model = Tagger(SIZES)
    load_values(model, values)
    optimizer = optim.Adam(model.parameters(), lr=RATE)

    def train(batch: Batch) -> None:
        with db.Graph() as graph:
            losses = [model.loss(graph, *sentence) for sentence in batch.sentences()]
            graph.backward(F.mean(losses))
        optimizer.step()

    def predict(batch: Batch) -> list[Array]:
        with db.Graph(grad=False) as graph:
            states = [model.encoder(model.embedding(graph, words)) for words in batch.sources]
            found = graph.values([F.argmax(model.output(state), dim=-1) for state in states])
        return [tags.reshape(-1) for tags in found]

    return train, predict


def _pytorch(values: Any) -> tuple[Train, Predict]:
    import torch

    from benchmarks.peers.pytorch import padded
    from benchmarks.peers.pytorch_tagger import PaddedTagger

    torch.set_num_threads(1)
    tagger = PaddedTagger(SIZES, values)
    for group in tagger._adam.param_groups:
        group["lr"] = RATE

    def train(batch: Batch) -> None:
        tagger.train(tagger.prepare(batch))

    def predict(batch: Batch) -> list[Array]:
        with torch.no_grad():
            states, _ = tagger.model.encoder(tagger.model.embedding(padded(batch.sources, 0)))
            found = tagger.model.output(states).argmax(-1).numpy()
        return [found[: len(words), k] for k, words in enumerate(batch.sources)]

    return train, predict


if __name__ == "__main__":
    sys.exit(main())
