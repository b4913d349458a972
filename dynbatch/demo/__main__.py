"""`python -m dynbatch.demo`: a small encoder and decoder learn SCAN's commands, and show it."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Sequence
from itertools import islice
from statistics import mean

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.commands.status import exit_status
from dynbatch.demo.scan import scan_pairs, simple_split
from dynbatch.kernels.backends import without_c
from dynbatch.padding import padded_peak
from dynbatch.tasks.options import positive
from dynbatch.text import Vocabulary
from dynbatch.train import SentenceBatches, Trainer
from dynbatch.train.progress import COLUMNS

IdPair = tuple[Array, Array]
"""A command and its actions as ids."""

BATCH_SIZE, PEAK_RATE = 32, 4e-3
PASSES, PASSES_WITHOUT_C = 4, 2
"""Half a minute of a processor each; NumPy takes two and a half times as long as C."""

LONGEST = 60
"""Tokens after which writing stops; the longest right result has 48 and an end."""

INTRODUCTION = """\
SCAN: {all:,} commands and the actions that they mean, made from a grammar.
An encoder and a decoder with attention, {parameters:,} numbers, learn from {train:,}
of them and then read the other {test:,}. Sentences keep their own lengths.
"""
TO_GO_ON = """
To go on:
  dynbatch train --help                         which files it learns from
  python -m dynbatch.demo --pairs > scan.tsv    these pairs as such a file
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. The exit status is that of `exit_status`."""
    parser = argparse.ArgumentParser(prog="python -m dynbatch.demo", description=__doc__)
    parser.add_argument("--epochs", type=positive, metavar="N", help="passes over the data "
        f"({PASSES}; without a C compiler {PASSES_WITHOUT_C})")  # fmt: skip
    parser.add_argument("--pairs", action="store_true", help="print all pairs, source<TAB>target "
        "on each line, and train nothing")  # fmt: skip
    options = parser.parse_args(argv)
    return exit_status(print_pairs if options.pairs else lambda: run(options.epochs))


def print_pairs() -> None:
    for command, actions in scan_pairs():
        print(" ".join(command), " ".join(actions), sep="\t")


def run(epochs: int | None) -> None:
    """Train, translate what was held out, and say what padding would have cost."""
    db.seed(0)
    (train, test), begin = simple_split(), time.perf_counter()
    words, actions = [Vocabulary.build(side) for side in zip(*train, strict=True)]
    pairs = [(words.encode(source), actions.encode(target)) for source, target in train]
    model = models.Seq2Seq(len(words), len(actions), embed=32, hidden=64, rng=0)
    sizes = {"all": len(train) + len(test), "train": len(train), "test": len(test)}
    print(INTRODUCTION.format(parameters=model.num_parameters(), **sizes), flush=True)

    batches = SentenceBatches(pairs, BATCH_SIZE)
    if epochs is None:
        epochs = PASSES_WITHOUT_C if without_c() else PASSES
    if epochs < PASSES:
        print(f"{epochs} of {PASSES} passes, to save time: some more commands will go wrong.\n")
    fit(model, batches, epochs)

    sources = [words.encode(source) for source, _ in test]
    results = db.generate(model, sources, max_new_tokens=LONGEST)
    answers = [tuple(actions.decode(best.tokens)) for (best,) in results]
    right = sum([mine == target for mine, (_, target) in zip(answers, test, strict=True)])
    print(f"\nCommands never seen: {right:,} of {len(test):,} exact, {right / len(test):.1%}")
    for (source, target), mine in islice(zip(test, answers, strict=True), 4):
        print(translation(source, mine, target))
    print(f"\n{cost_of_padding(model, batches)}")
    print(f"All in {time.perf_counter() - begin:.0f} seconds.\n{TO_GO_ON}", end="")


def fit(model: models.Seq2Seq, batches: SentenceBatches[IdPair], epochs: int) -> None:
    """Train by Adam under a warm-up and a cosine, with a progress bar."""
    optimizer = optim.Adam(model, PEAK_RATE)
    updates = len(batches) * epochs
    trainer = Trainer(
        model,
        optimizer,
        lambda graph, model, pair: model.loss(graph, *pair),
        batches,
        num_tokens=lambda pair: pair[1].size + 1,
        schedule=optim.Cosine(optimizer, updates, updates // 40, min_lr=PEAK_RATE / 100),
        clip_norm=1.0,
        show_progress=True,
    )
    trainer.fit(epochs)


def translation(source: Sequence[str], mine: Sequence[str], right: Sequence[str]) -> str:
    """A command and its actions in at most 80 columns, and the right ones where they differ."""
    said = {"": " ".join(source), "-> ": short(mine)}
    if mine != right:
        said["not -> "] = short(right)
    lines = [
        textwrap.fill(text, COLUMNS, initial_indent=f"  {mark}", subsequent_indent="     ")
        for mark, text in said.items()
    ]
    return "\n".join(lines)


def short(actions: Sequence[str]) -> str:
    """Actions without the I_ that each begins with."""
    return " ".join([action.removeprefix("I_") for action in actions])


def cost_of_padding(model: models.Seq2Seq, batches: SentenceBatches[IdPair]) -> str:
    """Words and memory of some mini-batches, padded and as they were, as two lines.

    Memory is planned for both, and nothing is run.
    """
    first = list(islice(batches.epoch(0), 20))
    true = padded = 0
    for side in (0, 1):
        for batch in first:
            lengths = [pair[side].size for pair in batch]
            true, padded = true + sum(lengths), padded + max(lengths) * len(lengths)
    peak_padded = padded_peak(model, model.loss)
    taken = mean([peak(model, batch) for batch in first])
    would = mean([peak_padded(batch) for batch in first])
    return (
        f"Padding would have computed {padded / true:.1f} times as many words, and have taken "
        f"{would / 1e6:.1f} MB\nfor a training step in place of {taken / 1e6:.1f} MB."
    )


def peak(model: models.Seq2Seq, batch: Sequence[IdPair]) -> int:
    """Bytes that a training step on a mini-batch takes at its peak."""
    with db.Graph() as graph:
        loss = F.mean([model.loss(graph, *pair) for pair in batch])
        return graph.estimate(loss).peak_bytes


if __name__ == "__main__":
    sys.exit(main())
