"""Find the kinds of hidden nodes in the syntax trees of Python's own standard library.

    python -m examples.trees.syntax

A function's tree is given, and what each node is to its head (func, args, body, …). Of some nodes
the kind is hidden: Name, Call, Compare, …
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.tasks.options import above_zero, option, passes
from dynbatch.tasks.training import place, sample
from dynbatch.text import Vocabulary
from examples.corpora.syntax import Function, load
from examples.training import command
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import TreeSettings, accuracy, fit


@dataclass(frozen=True, kw_only=True)
class Settings(TreeSettings):
    """The example's own defaults."""

    limit: int | None = option(3000, "train on X functions, drawn at random")
    epochs: int = option(3, "passes over the data", passes)
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)


HIDDEN_SHARE = 0.15


def hidden_nodes(function: Function, number: int) -> Array:
    """The hidden nodes, at least one and never the root; the same ones in every epoch."""
    count = len(function.kinds) - 1
    draws = np.random.Philox(key=number).random_raw(count)  # NumPy promises this stream
    return np.sort(np.argsort(draws, kind="stable")[: max(1, round(HIDDEN_SHARE * count))]) + 1


def labelled_trees(
    functions: Iterable[Function], kinds: Vocabulary, fields: Vocabulary
) -> list[LabelledTree]:
    """Kinds and fields, the tree, and the kinds of the hidden nodes, which are unknown ones."""
    trees = []
    for number, function in enumerate(functions):
        asked, ids = hidden_nodes(function, number), kinds.encode(function.kinds)
        shown = ids.copy()
        shown[asked] = kinds.unknown
        features = np.stack([shown, fields.encode(function.fields)])
        trees.append(LabelledTree(features, np.array(function.heads), asked, ids[asked]))
    return trees


def by_place(train: Iterable[Function], test: Iterable[Function]) -> float:
    """Accuracy of the most frequent kind in each field of each kind of head, on hidden nodes."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    overall: Counter[str] = Counter()
    for function in train:
        overall.update(function.kinds[1:])
        for kind, where in _places(function, range(1, len(function.kinds))):
            counts.setdefault(where, Counter())[kind] += 1
    found = [
        counts.get(where, overall).most_common(1)[0][0] == kind
        for number, function in enumerate(test)
        for kind, where in _places(function, hidden_nodes(function, number))
    ]
    return float(np.mean(found))


def _places(function: Function, nodes: Iterable[int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Kind, and (head's kind, field), of some nodes."""
    for node in nodes:
        head = function.kinds[function.heads[node]]
        yield function.kinds[node], (head, function.fields[node])


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Find hidden nodes of Python's syntax trees by a child-sum Tree-LSTM."
    return command(Settings, run, argv, "examples.trees.syntax", what)


def run(settings: Settings) -> None:
    """Train, and print the accuracy beside those of the baselines."""
    train, test = sample(load("train"), settings), load("test")
    kinds = Vocabulary.build([one.kinds for one in train])
    fields = Vocabulary.build([one.fields for one in train])
    sizes = (len(kinds), len(fields))
    model = NodeClassifier(sizes, len(kinds), settings.embed, settings.hidden, settings.dropout)
    tested = labelled_trees(test, kinds, fields)
    print(
        f"{len(train):,} functions, {len(test):,} for test; {model.num_parameters():,} parameters; "
        f"{place(settings)}"
    )
    ((most, _),) = Counter([kind for one in train for kind in one.kinds]).most_common(1)
    usual = np.mean(np.concatenate([tree.labels for tree in tested]) == kinds.encode([most]))
    print(f"always {most}, the most frequent kind: {usual:.2%} right")
    print(f"most frequent kind in each field of each head: {by_place(train, test):.2%} right")
    print(fit(model, labelled_trees(train, kinds, fields), settings))
    print(f"child-sum Tree-LSTM: {accuracy(model, tested):.2%} right")


if __name__ == "__main__":
    sys.exit(main())
