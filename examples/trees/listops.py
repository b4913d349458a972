"""Evaluate nested lists of digits: a binary Tree-LSTM on their trees, an LSTM on their tokens.

python -m examples.trees.listops
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from examples.corpora.listops import DIGITS, TOKENS, Expression, draw, numbered
from examples.trees.training import Array, Settings, accuracy, begin, fit

COMMAND = "python -m examples.trees.listops"

USUAL = Settings(limit=20_000, epochs=5, embed=64, hidden=64)

HELD_OUT = 1000
"""Expressions of the development set, and of the test set."""

LONGEST_TRAINED = 100
"""Tokens; longer expressions are only tested on."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An expression as the models read it: ids (T,), pairs (T - 1, 2), its value as labels (1,)."""

    ids: Array
    pairs: list[tuple[int, int]]
    labels: Array

    @property
    def num_nodes(self) -> int:
        """Of the tree: tokens and pairs."""
        return len(self.ids) + len(self.pairs)


class TreeEvaluator(models.Module):
    """The state of the tree's root says the value."""

    def __init__(self, embed: int, hidden: int) -> None:
        self.embed = models.Embedding(len(TOKENS), embed)
        self.tree_lstm = models.BinaryTreeLSTM(embed, hidden)
        self.project = models.Linear(hidden, len(DIGITS))

    def scores(self, graph: db.Graph, expression: Evaluation) -> db.Node:
        """(10,)."""
        _, root = self.tree_lstm(self.embed(graph, expression.ids), expression.pairs)
        return self.project(root)


class SequenceEvaluator(models.Module):
    """The same from the last state of an LSTM over the tokens."""

    def __init__(self, embed: int, hidden: int) -> None:
        self.embed = models.Embedding(len(TOKENS), embed)
        self.lstm = models.LSTM(embed, hidden)
        self.project = models.Linear(hidden, len(DIGITS))

    def scores(self, graph: db.Graph, expression: Evaluation) -> db.Node:
        """(10,)."""
        _, [(h, _)] = self.lstm(self.embed(graph, expression.ids), return_state=True)
        return self.project(h)


def evaluation(expression: Expression) -> Evaluation:
    """An expression in numbers."""
    ids, labels = numbered(expression.tokens), [expression.value()]
    return Evaluation(np.array(ids), expression.pairs(), np.array(labels))


def main(argv: Sequence[str] | None = None) -> int:
    """Train both and print their accuracies."""
    settings = begin(COMMAND, "Evaluate nested lists of digits.", USUAL, argv)
    count = settings.limit or 90_000
    drawn = [evaluation(one) for one in draw(count + 2 * HELD_OUT, settings.seed)]
    test, dev = drawn[:HELD_OUT], drawn[HELD_OUT : 2 * HELD_OUT]
    train = [one for one in drawn[2 * HELD_OUT :] if len(one.ids) <= LONGEST_TRAINED]
    kinds: dict[str, Any] = {"Tree-LSTM": TreeEvaluator, "LSTM": SequenceEvaluator}
    print(f"{len(train):,} expressions of at most {LONGEST_TRAINED} tokens to train on")
    for name, kind in kinds.items():
        model = kind(settings.embed, settings.hidden)
        print(f"{name}, {model.num_parameters():,} parameters")
        speed = fit(model, train, dev, settings)
        print(f"  {speed}")
        print(f"  {accuracy(model, test):.2%} of {len(test):,} test expressions right", flush=True)
    most = np.bincount(np.concatenate([one.labels for one in train])).argmax()
    usual = np.mean([one.labels[0] == most for one in test])
    print(f"always {most}, the most frequent value in training: {usual:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
