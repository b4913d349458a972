"""Classification: a label for each text, by convolutions over its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DataError
from dynbatch.graph import Graph
from dynbatch.models.predict import predict
from dynbatch.nodes.node import Node
from dynbatch.parameter import Array
from dynbatch.tasks.baselines import NaiveBayes, most_frequent
from dynbatch.tasks.learning import COLUMNS
from dynbatch.tasks.options import above_zero, option, passes
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import LabellingTask, Parts, checked_description, table_widths
from dynbatch.tasks.words import is_share, is_tokens, words_of_text
from dynbatch.text import LabelledText, Vocabulary, read_labelled
from dynbatch.text.vocabulary import MARKS
from dynbatch.train import CheckpointInfo

MOST_COUNTS = 1 << 24
"""Naive Bayes is worked out where it has no more counts than this, one a label and word."""

WINDOWS = (3, 4, 5)
"""Words in the windows of the network."""


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TaskSettings):
    """What a classifier of texts can be told."""

    epochs: int = option(6, "passes over the data", passes)
    batch_size: int = option(16, "texts in a mini-batch")
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)
    characters: bool = option(False, "read characters, not words")
    min_count: int = option(2, "words seen less often are unknown")
    features: int = option(128, "of a word's vector")
    filters: int = option(64, "filters of each window size, 3, 4 and 5")


@dataclass(frozen=True, slots=True, eq=False)
class LabelledIds:
    """A text in ids (T,), and the number of its label."""

    ids: Array
    label: int


class TextClassifier(models.Module):
    """Ids of words to scores of labels, by `models.TextCNN`.

    Args:
        words:    number of ids.
        labels:   K.
        features: of a word's vector.
        filters:  of each window size.
        dropout:  of word vectors, and of the filters' answers.
    """

    def __init__(
        self, words: int, labels: int, features: int, filters: int, dropout: float = 0.0
    ) -> None:
        self.words = models.Embedding(words, features, scale=0.1)
        self.network = models.TextCNN(features, labels, WINDOWS, filters, dropout)
        self.dropout = models.Dropout(dropout)

    def __call__(self, graph: Graph, ids: Array) -> Node:
        """Scores of a text's labels, (K,)."""
        return self.network(self.dropout(self.words(graph, ids)))


def labelled(
    lines: Sequence[str], scores: Sequence[Array], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The label of each line, its probability, and those of all labels, from scores (K,)."""
    found = []
    for line, row in zip(lines, scores, strict=True):
        weights = np.exp(row.astype(np.float64) - row.max())
        shares = dict(zip(labels, (weights / weights.sum()).tolist(), strict=True))
        label = labels[int(row.argmax())]
        about = {"label": label, "probability": shares[label], "probabilities": shares}
        found.append({"text": line, **about})
    return found


class Classification(LabellingTask):
    """A classifier with its words and labels.

    Args:
        vocabulary:    of words, or of characters.
        labels:        all labels, in the order of their numbers.
        model:         a `TextClassifier` of these sizes.
        is_characters: whether ids are those of characters.
    """

    name = "classification"
    form = 'label<TAB>text on each line, a .csv file, or JSON lines with "text" and "label"'
    Settings = ClassificationSettings
    higher_is_better = True
    model: TextClassifier

    def __init__(
        self, vocabulary: Vocabulary, labels: Sequence[str], model: TextClassifier,
        is_characters: bool = False,
    ) -> None:  # fmt: skip
        self.vocabulary, self.labels, self.model = vocabulary, list(labels), model
        self.is_characters = is_characters
        Vocabulary(labels)  # refuses marks, without which a checkpoint could not be read
        self._numbers = {label: number for number, label in enumerate(labels)}

    @classmethod
    def read(cls, path: str | Path, settings: ClassificationSettings) -> list[LabelledText]:
        return read_labelled(path)

    @classmethod
    def key(cls, text: LabelledText) -> str:
        return text.text

    @classmethod
    def begin(cls, parts: Parts, settings: ClassificationSettings) -> Self:
        """Words and labels of the texts to learn from, and an untrained model.

        Raises:
            DataError: all of them have one label.
        """
        labels = sorted({text.label for text in parts.train})
        if len(labels) < 2:
            raise DataError(
                f"All {len(parts.train):,} texts to learn from have the label {labels[0]!r}.\n"
                "  rule: there are two labels or more\n"
                "  fix:  give texts of other labels, too"
            )
        is_characters = settings.characters
        tokens = [words_of_text(text.text, is_characters) for text in parts.train]
        vocabulary = Vocabulary.build(tokens, settings.min_count)
        model = TextClassifier(
            len(vocabulary), len(labels), settings.features, settings.filters, settings.dropout
        )
        return cls(vocabulary, labels, model, is_characters)

    def examples(self, texts: Sequence[LabelledText]) -> list[LabelledIds]:
        """Texts in ids; a label that training did not see counts as the first."""
        return [
            LabelledIds(self._ids(text.text), self._numbers.get(text.label, 0)) for text in texts
        ]

    def _ids(self, text: str) -> Array:
        return self.vocabulary.encode(words_of_text(text, self.is_characters))

    def loss(self, graph: Graph, model: TextClassifier, example: LabelledIds) -> Node:
        return F.cross_entropy(model(graph, example.ids), example.label)

    def num_tokens(self, example: LabelledIds) -> int:
        """One, as a text has one label."""
        return 1

    def length(self, example: LabelledIds) -> int:
        """The words of a text."""
        return int(example.ids.size)

    def scores(self, texts: Sequence[str]) -> list[Array]:
        """Scores of the labels of each text, (K,)."""
        return predict(self.model, self.model, [self._ids(text) for text in texts])

    def _best(self, texts: Sequence[LabelledText]) -> list[str]:
        return [self.labels[int(y.argmax())] for y in self.scores([text.text for text in texts])]

    def evaluate(self, texts: Sequence[LabelledText]) -> dict[str, float]:
        """Accuracy, and the mean of the labels' F1."""
        wanted, found = [text.label for text in texts], self._best(texts)
        return {"accuracy": accuracy(wanted, found), "macro-F1": macro_f1(wanted, found)}

    def told(self, found: dict[str, float], texts: Sequence[LabelledText]) -> str:
        """Both metrics in percent."""
        right, f1 = found.values()
        return f"validation: {right:.2%} of the labels are right, macro-F1 {f1:.2%}"

    def report(self, parts: Parts) -> str:
        """Accuracy and macro-F1 beside the baselines', and the labels that are mixed up most."""
        wanted, found = [text.label for text in parts.test], self._best(parts.test)
        lines = [f"{'right labels of the test set':28} accuracy  macro-F1"]
        for name, labels in {**self._baselines(parts), "text CNN": found}.items():
            shares = f"{accuracy(wanted, labels):8.2%}  {macro_f1(wanted, labels):8.2%}"
            lines.append(f"{name[:28]:28} {shares}")
        pairs = Counter([pair for pair in zip(wanted, found, strict=True) if pair[0] != pair[1]])
        lines += ["mixed up most:"] if pairs else []
        lines += [f"  {a} taken for {b} ({count})" for (a, b), count in pairs.most_common(3)]
        return "\n".join(lines)

    def _baselines(self, parts: Parts) -> dict[str, list[str]]:
        """What labels the test's texts have by what needs no network."""
        known, test = self.examples(parts.train), self.examples(parts.test)
        numbers = [example.label for example in known]
        usual = self.labels[most_frequent(numbers)]
        rows = {f"always {usual}": [usual] * len(test)}
        if len(self.labels) * len(self.vocabulary) <= MOST_COUNTS:
            ids = [example.ids for example in known]
            bayes = NaiveBayes(ids, numbers, len(self.vocabulary))
            rows["naive Bayes"] = [self.labels[bayes.classify(each.ids)] for each in test]
        return rows

    def differences(self, other: Self) -> list[str]:
        """What words and labels differ."""
        said = {
            "words": self.vocabulary.difference(other.vocabulary),
            "labels": Vocabulary(self.labels).difference(Vocabulary(other.labels)),
        }
        return [f"{name}: {difference}" for name, difference in said.items() if difference]

    def unknown(self, texts: Sequence[LabelledText]) -> float:
        """The share of words without a vector."""
        ids = np.concatenate([self._ids(text.text) for text in texts])
        return float(np.mean(ids == Vocabulary.unknown)) if ids.size else 0.0

    @classmethod
    def shown(cls, text: LabelledText) -> str:
        return f"{text.label}: {' '.join(text.text.split())}"

    @classmethod
    def prompt(cls, text: LabelledText) -> str:
        return " ".join(text.text.split())

    @classmethod
    def sizes(cls, texts: Sequence[LabelledText]) -> str:
        labels = {text.label for text in texts}
        longest = max([len(text.text) for text in texts])
        return f"{len(texts):,} texts (the longest of {longest:,} characters), {len(labels)} labels"

    def samples(
        self, texts: Sequence[LabelledText], settings: ClassificationSettings,
        rng: np.random.Generator,
    ) -> list[str]:  # fmt: skip
        """Beginnings of texts behind the labels found; behind a wrong one stands the right one."""
        lines = []
        for text, label in zip(texts, self._best(texts), strict=True):
            mark = f"[{text.label}]" * (label != text.label)
            lines.append(f"{label}{mark}: {' '.join(text.text.split())}"[:COLUMNS])
        return lines

    # Labels of lines, and checkpoints -------------------------------------------------------------

    def label(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """The label of each line, its probability, and those of all labels."""
        return labelled(lines, self.scores(lines), self.labels)

    @staticmethod
    def line(found: dict[str, Any]) -> str:
        """The label alone."""
        return str(found["label"])

    def description(self) -> dict[str, Any]:
        return {
            "words": self.vocabulary.tokens[len(MARKS) :], "labels": self.labels,
            "is_characters": self.is_characters, "dropout": self.model.dropout.p,
        }  # fmt: skip

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        fields = {"words": is_tokens, "labels": is_tokens, "is_characters": _is_switch}
        found = checked_description(info, {**fields, "dropout": is_share})
        vocabulary, labels = Vocabulary(found["words"]), found["labels"]
        rows = {"words": len(vocabulary), "network.project": len(labels)}
        features, width = table_widths(info, rows)
        model = TextClassifier(
            len(vocabulary), len(labels), features, width // len(WINDOWS), found["dropout"]
        )
        return cls(vocabulary, labels, model, found["is_characters"])


def accuracy(wanted: Sequence[str], found: Sequence[str]) -> float:
    """The share of right labels."""
    return sum([a == b for a, b in zip(wanted, found, strict=True)]) / max(1, len(wanted))


def macro_f1(wanted: Sequence[str], found: Sequence[str]) -> float:
    """The mean over labels of 2 · right / (wanted + found).

    Example:
        >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])      # 2/3 for each
        0.6666666666666666
    """
    right = Counter([a for a, b in zip(wanted, found, strict=True) if a == b])
    both = Counter(wanted) + Counter(found)
    return sum([2 * right[label] / count for label, count in both.items()]) / max(1, len(both))


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)
