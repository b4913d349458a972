"""Evaluate nested lists of digits: a binary Tree-LSTM on their trees, an LSTM on their tokens.

python -m examples.trees.listops
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch.backend import Array
from dynbatch.tasks.options import option, passes
from dynbatch.tasks.training import place
from dynbatch.train.batching import epoch_order
from examples.corpora.listops import DIGITS, TOKENS, Expression, draw, numbered
from examples.training import command
from examples.trees.training import TreeSettings, accuracy, fit

NUM_TEST = 1000
"""Expressions to test on."""

LONGEST_TRAINED = 100
"""Tokens; longer expressions are only tested on."""


@dataclass(frozen=True, kw_only=True)
class Settings(TreeSettings):
    """The example's own defaults."""

    limit: int = option(10_000, "draw X expressions to train on; long ones are left out")
    epochs: int = option(3, "passes over the data", passes)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An expression as the models read it: ids (T,), pairs (T - 1, 2), its value as labels (1,)."""

    ids: Array
    pairs: list[tuple[int, int]]
    labels: Array

    @property
    def num_nodes(self) -> int:
        """The nodes of the tree: tokens and pairs."""
        return len(self.ids) + len(self.pairs)


class TreeEvaluator(models.Module):
    """The state of the tree's root says the value."""

    def __init__(self, embed: int, hidden: int) -> None:
        self.embed = models.Embedding(len(TOKENS), embed)
        self.tree_lstm = models.BinaryTreeLSTM(embed, hidden)
        self.project = models.Linear(hidden, len(DIGITS))

    def scores(self, graph: db.Graph, expression: Evaluation) -> Node:
        """(10,)."""
        _, root = self.tree_lstm(self.embed(graph, expression.ids), expression.pairs)
        return self.project(root)


class SequenceEvaluator(models.Module):
    """The value by the last state of an LSTM over the tokens."""

    def __init__(self, embed: int, hidden: int) -> None:
        self.embed = models.Embedding(len(TOKENS), embed)
        self.lstm = models.LSTM(embed, hidden)
        self.project = models.Linear(hidden, len(DIGITS))

    def scores(self, graph: db.Graph, expression: Evaluation) -> Node:
        """(10,)."""
        _, [(h, _)] = self.lstm(self.embed(graph, expression.ids), return_state=True)
        return self.project(h)


def evaluation(expression: Expression) -> Evaluation:
    """An expression in numbers."""
    ids, labels = numbered(expression.tokens), [expression.value()]
    return Evaluation(np.array(ids), expression.pairs(), np.array(labels))


def main(argv: Sequence[str] | None = None) -> int:
    """Train both and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Evaluate nested lists of digits by a Tree-LSTM and by an LSTM."
    return command(Settings, run, argv, "examples.trees.listops", what)


def run(settings: Settings) -> None:
    """Train both models and print their accuracies on expressions of all lengths."""
    drawn = [evaluation(one) for one in draw(NUM_TEST + settings.limit, settings.seed)]
    order = epoch_order(len(drawn), settings.seed, epoch=0).tolist()  # as drawn, short ones lead
    test = [drawn[index] for index in order[:NUM_TEST]]
    rest = [drawn[index] for index in order[NUM_TEST:]]
    train = [one for one in rest if len(one.ids) <= LONGEST_TRAINED]
    print(
        f"{len(train):,} expressions of at most {LONGEST_TRAINED} tokens, {len(test):,} of at most "
        f"{max(len(one.ids) for one in test)} for test; {place(settings)}"
    )
    most = np.bincount(np.concatenate([one.labels for one in train])).argmax()
    usual = np.mean([one.labels[0] == most for one in test])
    print(f"always {most}, the most frequent value: {usual:.2%} right", flush=True)
    for name, kind in {"tree-lstm": TreeEvaluator, "lstm": SequenceEvaluator}.items():
        model = kind(settings.embed, settings.hidden)
        print(f"{name}, {model.num_parameters():,} parameters", flush=True)
        folder = None if settings.output is None else str(Path(settings.output, name))
        print(f"  {fit(model, train, replace(settings, output=folder))}")
        print(f"  {accuracy(model, test):.2%} right", flush=True)


if __name__ == "__main__":
    sys.exit(main())
