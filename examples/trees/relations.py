"""Name the relation of every word to its head in Portuguese dependency trees.

    python -m examples.trees.relations

The trees are given, their labels are to be found: nsubj, obj, case, … of PetroGold.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dynbatch.errors import DataError
from examples.corpora.petrogold import Sentence, load
from examples.seq2seq.vocabulary import Vocabulary
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import Settings, accuracy, begin, first, fit

COMMAND = "python -m examples.trees.relations"

USUAL = Settings(epochs=4, embed=64, hidden=64, dropout=0.3)

SIDES = ("root", "head to the left", "head to the right")


def labelled_tree(sentence: Sentence, words: Vocabulary, labels: Vocabulary) -> LabelledTree:
    """Words and the sides of their heads, the tree, and the label of every word."""
    heads = np.array(sentence.heads) - 1  # CoNLL-U counts from 1
    sides = np.where(heads < 0, 0, np.where(heads < np.arange(len(heads)), 1, 2))
    ids = words.encode([word.lower() for word in sentence.words])
    return LabelledTree(
        np.stack([ids, sides]), heads, np.arange(len(heads)), labels.encode(sentence.labels)
    )


def by_word(train: Iterable[Sentence], test: Iterable[Sentence]) -> float:
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
    """Train and print the accuracy beside the baseline's."""
    settings = begin(COMMAND, "Label the edges of dependency trees.", USUAL, argv)
    try:
        train, dev, test = first(load("train"), settings), load("dev"), load("test")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    words = Vocabulary.build([map(str.lower, one.words) for one in train], min_count=2)
    labels = Vocabulary.build([one.labels for one in train])
    model = NodeClassifier(
        (len(words), len(SIDES)), len(labels), settings.embed, settings.hidden, settings.dropout
    )
    print(f"{len(train):,} sentences to train on; {model.num_parameters():,} parameters")
    parts = [[labelled_tree(one, words, labels) for one in part] for part in (train, dev, test)]
    speed = fit(model, parts[0], parts[1], settings)
    print(f"  {speed}")
    print(f"  {accuracy(model, parts[2]):.2%} of the labels of {len(test):,} test sentences right")
    print(f"each word's most frequent label: {by_word(train, test):.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
