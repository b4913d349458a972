"""Train a convolutional network on handwritten digits whose images have sizes of their own.

python -m examples.digits.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch import Graph, Node, predict
from dynbatch import nodes as F
from dynbatch.tasks.options import above_zero, not_negative, option, passes, share
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train
from dynbatch.train import PreparedBatches, SentenceBatches
from examples.corpora import digits
from examples.corpora.digits import Digit
from examples.digits.images import drawn
from examples.digits.model import DigitReader
from examples.training import command

TEST_EVERY = 5
"""Each fifth digit of the file is for the test; their writers wrote others, too."""


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The reader's own settings."""

    data: str | None = option(None, "a wheel of scikit-learn (fetched with pip, once)", str)
    limit: int | None = option(None, "train on X images, drawn at random (all)")
    epochs: int = option(12, "passes over the data", passes)
    batch_size: int = option(32, "images in a mini-batch")
    lr: float = option(4e-3, "peak of Adam's learning rate", above_zero)
    warmup: int = option(50, "updates until the peak; then the rate falls as a cosine")
    dropout: float = option(0.25, "probability that a feature is dropped while training", share)
    channels: int = option(16, "of the first convolution")
    workers: int = option(
        1, "threads that draw images ahead of training", not_negative, is_kept=False
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a convolutional network to read handwritten digits, each at its own size."
    return command(Settings, run, argv, "examples.digits.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print its accuracy and what no padding saved."""
    known, test = split(digits.load(settings.data))
    chosen = sample(known, settings)
    reader = DigitReader(settings.channels, settings.dropout)
    plain = SentenceBatches(chosen, settings.batch_size, settings.seed)
    batches = PreparedBatches(plain, drawn, workers=settings.workers)
    print(
        f"{len(chosen):,} images, {len(test):,} for test\n"
        f"{reader.num_parameters():,} parameters; {place(settings)}\n"
        f"{pixels(list(batches.epoch(0)))}",
        flush=True,
    )
    train(reader, losses, chosen, settings, batches=batches, loss_of_batch=True)
    print(f"\n{report(reader, sized(test))}")


def split(found: Sequence[Digit]) -> tuple[list[Digit], list[Digit]]:
    """Digits to train on, and for the test."""
    known = [digit for number, digit in enumerate(found) if number % TEST_EVERY]
    return known, list(found[::TEST_EVERY])


def sized(found: Sequence[Digit]) -> list[Digit]:
    """Each digit at one size of its own, always the same."""
    return [drawn(digit, np.random.default_rng(number)) for number, digit in enumerate(found)]


def losses(graph: Graph, reader: DigitReader, batch: Sequence[Digit]) -> list[Node]:
    """Negative log-likelihood of each label."""
    scores = reader.scores(graph, [digit.image for digit in batch])
    return [F.cross_entropy(s, digit.label) for s, digit in zip(scores, batch, strict=True)]


def pixels(batches: Sequence[Sequence[Digit]]) -> str:
    """The sizes of an epoch's images, and how many more pixels mini-batches would have padded."""
    sizes = [[digit.image.shape for digit in batch] for batch in batches]
    heights, widths = zip(*[size for batch in sizes for size in batch], strict=True)
    own = sum([height * width for height, width in zip(heights, widths, strict=True)])
    padded = sum([len(b) * max([h for h, _ in b]) * max([w for _, w in b]) for b in sizes])
    return (
        f"heights {min(heights)} to {max(heights)}, widths {min(widths)} to {max(widths)}: "
        f"{own:,} pixels an epoch;\npadded to the largest height and width of each mini-batch "
        f"{padded:,}, of which {1 - own / padded:.0%} padding, saved here"
    )


def report(reader: DigitReader, test: Sequence[Digit]) -> str:
    """The accuracy on the test's digits, beside that of always one digit, and what is mistaken."""
    scores = predict(reader, lambda graph, digit: reader.scores(graph, [digit.image])[0], test)
    labels = np.array([digit.label for digit in test])
    found = np.array([int(np.argmax(each)) for each in scores])
    often = np.bincount(labels).max() / len(labels)
    wrong = [f"{a} for {b}" for a, b in zip(found, labels, strict=True) if a != b]
    return (
        f"test accuracy {(found == labels).mean():.2%} of {len(test):,} images "
        f"(always one digit: {often:.2%})\nread wrongly: {', '.join(wrong) or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
