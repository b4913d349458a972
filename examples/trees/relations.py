"""Name the relation of every word to its head in Portuguese dependency trees.

    python -m examples.trees.relations

The trees are given, their labels are to be found: nsubj, obj, case, … of PetroGold.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.tasks.options import above_zero, option, passes, share
from dynbatch.tasks.training import place, sample
from dynbatch.text import ParsedSentence, Vocabulary
from examples.corpora import petrogold
from examples.training import command
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import TreeSettings, accuracy, fit


@dataclass(frozen=True, kw_only=True)
class Settings(TreeSettings):
    """The example's own defaults."""

    limit: int | None = option(3000, "train on X sentences, drawn at random")
    epochs: int = option(3, "passes over the data", passes)
    dropout: float = option(0.2, "probability that a feature is dropped while training", share)
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)


SIDES = ("root", "head to the left", "head to the right")


def labelled_tree(sentence: ParsedSentence, words: Vocabulary, labels: Vocabulary) -> LabelledTree:
    """Words and the sides of their heads, the tree, and the label of every word."""
    heads = np.array(sentence.heads) - 1  # CoNLL-U counts from 1
    sides = np.where(heads < 0, 0, np.where(heads < np.arange(len(heads)), 1, 2))
    ids = words.encode([word.lower() for word in sentence.words])
    return LabelledTree(
        np.stack([ids, sides]), heads, np.arange(len(heads)), labels.encode(sentence.labels)
    )


def by_word(train: Iterable[ParsedSentence], test: Iterable[ParsedSentence]) -> float:
    """Accuracy of each word's most frequent label in training, of all words' for a new one."""
    counts: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for sentence in train:
        overall.update(sentence.labels)
        for word, label in zip(sentence.words, sentence.labels, strict=True):
            counts.setdefault(word.lower(), Counter())[label] += 1
    found = [
        counts.get(word.lower(), overall).most_common(1)[0][0] == label
        for sentence in test
        for word, label in zip(sentence.words, sentence.labels, strict=True)
    ]
    return float(np.mean(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Name the relations of PetroGold's dependency trees by a child-sum Tree-LSTM."
    return command(Settings, run, argv, "examples.trees.relations", what)


def run(settings: Settings) -> None:
    """Train, and print the accuracy beside the baseline's."""
    train, test = sample(petrogold.load("train"), settings), petrogold.load("test")
    words = Vocabulary.build([map(str.lower, one.words) for one in train], min_count=2)
    labels = Vocabulary.build([one.labels for one in train])
    model = NodeClassifier(
        (len(words), len(SIDES)), len(labels), settings.embed, settings.hidden, settings.dropout
    )
    print(
        f"{len(train):,} sentences, {len(test):,} for test; {model.num_parameters():,} parameters; "
        f"{place(settings)}"
    )
    print(f"each word's most frequent label: {by_word(train, test):.2%} right", flush=True)
    print(fit(model, [labelled_tree(one, words, labels) for one in train], settings))
    found = accuracy(model, [labelled_tree(one, words, labels) for one in test])
    print(f"child-sum Tree-LSTM: {found:.2%} right")


if __name__ == "__main__":
    sys.exit(main())
