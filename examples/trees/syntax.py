"""Find the kinds of hidden nodes in the syntax trees of Python's own standard library.

    python -m examples.trees.syntax

A function's tree is given, and what each node is to its head (func, args, body, …). Of some nodes
the kind is hidden: Name, Call, Compare, …
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dynbatch.errors import DataError
from examples.corpora.syntax import Function, load
from examples.seq2seq.vocabulary import Vocabulary
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import Array, Settings, accuracy, begin, first, fit

COMMAND = "python -m examples.trees.syntax"

USUAL = Settings(limit=3000, epochs=3, embed=64, hidden=64)

HIDDEN_SHARE = 0.15


def hidden_nodes(function: Function, number: int) -> Array:
    """Which nodes are hidden, at least one and never the root; the same ones in every epoch."""
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
        for kind, place in _places(function, range(1, len(function.kinds))):
            counts.setdefault(place, Counter())[kind] += 1
    found = [
        counts.get(place, overall).most_common(1)[0][0] == kind
        for number, function in enumerate(test)
        for kind, place in _places(function, hidden_nodes(function, number))
    ]
    return float(np.mean(found))


def _places(function: Function, nodes: Iterable[int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Kind, and (head's kind, field), of some nodes."""
    for node in nodes:
        place = (function.kinds[function.heads[node]], function.fields[node])
        yield function.kinds[node], place


def main(argv: Sequence[str] | None = None) -> int:
    """Train and print the accuracy beside the baselines'."""
    settings = begin(COMMAND, "Find the kinds of hidden nodes of syntax trees.", USUAL, argv)
    try:
        train, dev, test = first(load("train"), settings), load("dev"), load("test")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    kinds = Vocabulary.build([one.kinds for one in train])
    fields = Vocabulary.build([one.fields for one in train])
    sizes = (len(kinds), len(fields))
    model = NodeClassifier(sizes, len(kinds), settings.embed, settings.hidden, settings.dropout)
    print(f"{len(train):,} functions to train on; {model.num_parameters():,} parameters")
    parts = [labelled_trees(part, kinds, fields) for part in (train, dev, test)]
    speed = fit(model, parts[0], parts[1], settings)
    print(f"  {speed}")
    print(f"  {accuracy(model, parts[2]):.2%} of the hidden nodes of {len(test):,} test functions")
    most = kinds.encode(
        [Counter([kind for one in train for kind in one.kinds]).most_common(1)[0][0]]
    )
    usual = np.mean(np.concatenate([tree.labels for tree in parts[2]]) == most)
    print(f"the most frequent kind: {usual:.2%}")
    print(f"the most frequent kind in that field of that head: {by_place(train, test):.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
