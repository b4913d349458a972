"""Common parts of tasks that give a text one label: their files, metrics and baselines."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DataError, NumericError
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.tasks.baselines import NaiveBayes, most_frequent
from dynbatch.tasks.learning import COLUMNS
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import LabellingTask, Parts
from dynbatch.text import LabelledText, Vocabulary, read_labelled

MOST_COUNTS = 1 << 24
"""Naive Bayes is worked out where it has no more counts than this, one a label and word."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledIds:
    """A text in ids (T,), and the number of its label."""

    ids: Array
    label: int


class TextLabelling(LabellingTask):
    """A model that gives each text one label.

    Args:
        labels: all labels, in the order of their numbers.

    Attributes:
        network: what the model is, for the table of results.
    """

    form = 'label<TAB>text on each line, a .csv file, or JSON lines with "text" and "label"'
    network: ClassVar[str]
    higher_is_better = True

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        Vocabulary(labels)  # refuses marks, without which a checkpoint could not be read
        self._numbers = {label: number for number, label in enumerate(labels)}

    @property
    @abstractmethod
    def num_ids(self) -> int:
        """All ids that texts may have."""

    @abstractmethod
    def ids(self, text: str) -> Array:
        """The ids that the model reads of a text, (T,)."""

    @abstractmethod
    def scores(self, texts: Sequence[str], matmul: str = FULL) -> list[Array]:
        """Scores of the labels of each text, (K,)."""

    @classmethod
    def read(cls, path: str | Path, settings: TaskSettings) -> list[LabelledText]:
        return read_labelled(path)

    @classmethod
    def key(cls, text: LabelledText) -> str:
        return text.text

    def examples(self, texts: Sequence[LabelledText]) -> list[LabelledIds]:
        """Texts in ids; a label that training did not see counts as the first."""
        return [
            LabelledIds(self.ids(text.text), self._numbers.get(text.label, 0)) for text in texts
        ]

    def num_tokens(self, example: LabelledIds) -> int:
        return 1

    def length(self, example: LabelledIds) -> int:
        return int(example.ids.size)

    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"labels": Vocabulary(self.labels)}

    def _best(self, texts: Sequence[LabelledText]) -> list[str]:
        return [self.labels[int(y.argmax())] for y in self.scores([text.text for text in texts])]

    def evaluate(self, texts: Sequence[LabelledText]) -> dict[str, float]:
        """Accuracy, and the mean of the labels' F1."""
        wanted, answers = [text.label for text in texts], self._best(texts)
        return {"accuracy": accuracy(wanted, answers), "macro-F1": macro_f1(wanted, answers)}

    def told(self, found: dict[str, float], texts: Sequence[LabelledText]) -> str:
        right, f1 = found.values()
        return f"validation: {right:.2%} of the labels are right, macro-F1 {f1:.2%}"

    def report(self, parts: Parts) -> str:
        """Accuracy and macro-F1 beside the baselines', and the labels that are mixed up most."""
        wanted, answers = [text.label for text in parts.test], self._best(parts.test)
        lines = [f"{'right labels of the test set':28} accuracy  macro-F1"]
        for name, labels in {**self._baselines(parts), self.network: answers}.items():
            shares = f"{accuracy(wanted, labels):8.2%}  {macro_f1(wanted, labels):8.2%}"
            lines.append(f"{name[:28]:28} {shares}")
        pairs = Counter([pair for pair in zip(wanted, answers, strict=True) if pair[0] != pair[1]])
        lines += ["mixed up most:"] if pairs else []
        lines += [f"  {a} taken for {b} ({count})" for (a, b), count in pairs.most_common(3)]
        return "\n".join(lines)

    def _baselines(self, parts: Parts) -> dict[str, list[str]]:
        """Labels of the test's texts from baselines without a network."""
        known, test = self.examples(parts.train), self.examples(parts.test)
        numbers = [example.label for example in known]
        usual = self.labels[most_frequent(numbers)]
        rows = {f"always {usual}": [usual] * len(test)}
        if len(self.labels) * self.num_ids <= MOST_COUNTS:
            ids = [example.ids for example in known]
            bayes = NaiveBayes(ids, numbers, self.num_ids)
            rows["naive Bayes"] = [self.labels[bayes.classify(each.ids)] for each in test]
        return rows

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
        self, texts: Sequence[LabelledText], settings: TaskSettings,
        rng: np.random.Generator,
    ) -> list[str]:  # fmt: skip
        """Beginnings of texts behind the labels found; behind a wrong one stands the right one."""
        lines = []
        for text, label in zip(texts, self._best(texts), strict=True):
            mark = f"[{text.label}]" * (label != text.label)
            lines.append(f"{label}{mark}: {' '.join(text.text.split())}"[:COLUMNS])
        return lines

    # Labels of lines, and checkpoints -------------------------------------------------------------

    def label(self, lines: Sequence[str], matmul: str = FULL) -> list[dict[str, Any]]:
        return labelled(lines, self.scores(lines, matmul), self.labels)

    @staticmethod
    def line(found: dict[str, Any]) -> str:
        return str(found["label"])


def labels_of(texts: Sequence[LabelledText]) -> list[str]:
    """The labels of the texts to learn from, sorted.

    Raises:
        DataError: all of them have one label.
    """
    labels = sorted({text.label for text in texts})
    if len(labels) < 2:
        raise DataError(
            f"All {len(texts):,} texts to learn from have the label {labels[0]!r}.\n"
            "  rule: there are two labels or more\n"
            "  fix:  give texts of other labels, too"
        )
    return labels


def labelled(
    lines: Sequence[str], scores: Sequence[Array], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The label of each line, its probability, and those of all labels, from scores (K,).

    Raises:
        NumericError: scores of a line are NaN or infinite; names it.
    """
    rows = []
    for line, row in zip(lines, scores, strict=True):
        if not np.isfinite(row).all():
            raise NumericError(
                f"{line[:40]!r}: the scores of its labels are NaN or infinite.\n"
                "  rule: a label is chosen by numbers\n"
                "  fix:  look at the model's weights; model.best.safetensors has the best ones"
            )
        weights = np.exp(row.astype(np.float64) - row.max())
        shares = dict(zip(labels, (weights / weights.sum()).tolist(), strict=True))
        label = labels[int(row.argmax())]
        about = {"label": label, "probability": shares[label], "probabilities": shares}
        rows.append({"text": line, **about})
    return rows


def accuracy(wanted: Sequence[str], answers: Sequence[str]) -> float:
    """The share of right labels."""
    return sum([a == b for a, b in zip(wanted, answers, strict=True)]) / max(1, len(wanted))


def macro_f1(wanted: Sequence[str], answers: Sequence[str]) -> float:
    """The mean over labels of 2 · right / (wanted + answers).

    Example:
        >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])      # 2/3 for each
        0.6666666666666666
    """
    right = Counter([a for a, b in zip(wanted, answers, strict=True) if a == b])
    both = Counter(wanted) + Counter(answers)
    return sum([2 * right[label] / count for label, count in both.items()]) / max(1, len(both))
