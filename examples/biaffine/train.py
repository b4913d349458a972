"""Train a graph-based dependency parser on PetroGold and measure it on the test set.

python -m examples.biaffine.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node
from dynbatch.tasks.options import above_zero, option, passes
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train
from dynbatch.tasks.words import Lexicon
from dynbatch.text import ParsedSentence
from examples.biaffine.model import Example, Parser
from examples.corpora import petrogold
from examples.parser.evaluation import PUBLISHED, Tree, neighbour, scores
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The parser's own settings."""

    epochs: int = option(5, "passes over the data", passes)
    batch_size: int = option(16, "sentences in a mini-batch")
    lr: float = option(3e-3, "peak of Adam's learning rate", above_zero)
    min_count: int = option(3, "words seen less often are spelled, not looked up")
    features: int = option(64, "of a word's vector, an even number; half as many of its tag")
    letters: int = option(32, "features of a character")
    hidden: int = option(96, "units of the LSTM in each direction")
    layers: int = option(2, "of the LSTM")
    no_tags: bool = option(False, "read words alone, not the treebank's tags")


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a graph-based dependency parser with biaffine scores on PetroGold."
    return command(Settings, run, argv, "examples.biaffine.train", what)


class Numbering:
    """The words, tags and labels of a training set."""

    def __init__(self, sentences: Sequence[ParsedSentence], min_count: int) -> None:
        self.lexicon = Lexicon.build([sentence.words for sentence in sentences], min_count)
        self.tags = sorted({tag for sentence in sentences for tag in sentence.tags})
        self.labels = sorted({label for sentence in sentences for label in sentence.labels})
        self._tags = {tag: k for k, tag in enumerate(self.tags)}
        self._labels = {label: k for k, label in enumerate(self.labels)}

    def number(self, sentence: ParsedSentence) -> Example:
        """A sentence in numbers; a tag or label that was never seen counts as the first."""
        return Example(
            words=self.lexicon.encode(sentence.words),
            tags=np.array([self._tags.get(tag, 0) for tag in sentence.tags]),
            heads=np.array(sentence.heads),
            labels=np.array([self._labels.get(label, 0) for label in sentence.labels]),
        )


def run(settings: Settings) -> None:
    """Train what the settings say, and print its scores beside those of rules."""
    sentences, test = sample(petrogold.load("train"), settings), petrogold.load("test")
    numbering = Numbering(sentences, settings.min_count)
    parser = Parser(
        numbering.lexicon, 0 if settings.no_tags else len(numbering.tags), len(numbering.labels),
        settings.features, settings.letters, settings.hidden, settings.layers, settings.dropout,
    )  # fmt: skip
    print(
        f"{len(sentences):,} sentences, {len(test):,} for test; {len(numbering.labels)} labels\n"
        f"{parser.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    examples = [numbering.number(sentence) for sentence in sentences]
    train(parser, parser_loss, examples, settings, num_tokens=lambda example: example.heads.size)
    found = parser.parse([numbering.number(sentence) for sentence in test])
    trees = [(heads.tolist(), [numbering.labels[k] for k in labels]) for heads, labels in found]
    report(trees, test)


def parser_loss(graph: db.Graph, parser: Parser, example: Example) -> Node:
    """Negative log-likelihood of one sentence's heads and labels, summed."""
    return parser.loss(graph, example)


def report(trees: Sequence[Tree], test: Sequence[ParsedSentence]) -> None:
    """Print the scores of the trees found for the test sentences beside those of rules."""
    print(f"\nTest set, {len(test):,} sentences")
    rows = {
        "this parser": trees,
        "head is the word before": [neighbour(sentence, -1) for sentence in test],
        "head is the next word": [neighbour(sentence, 1) for sentence in test],
    }
    for name, found in rows.items():
        print(f"  {name:<27} {scores(found, test)}")
    print(f"  {'published, earlier split':<27} {PUBLISHED}")


if __name__ == "__main__":
    sys.exit(main())
