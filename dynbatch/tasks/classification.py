"""Classification: a label for each text, by convolutions over its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dynbatch import models
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.predict import predict
from dynbatch.nodes.node import Node
from dynbatch.tasks.options import above_zero, option, passes
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import Parts, checked_description, table_widths
from dynbatch.tasks.text_labelling import LabelledIds, TextLabelling, labels_of
from dynbatch.tasks.words import is_share, is_tokens, words_of_text
from dynbatch.text import LabelledText, Vocabulary
from dynbatch.train import CheckpointInfo

WINDOWS = (3, 4, 5)
"""Words in the windows of the network."""


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TaskSettings):
    """Settings of a text classifier."""

    epochs: int = option(6, "passes over the data", passes)
    batch_size: int = option(16, "texts in a mini-batch")
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)
    characters: bool = option(False, "read characters, not words")
    min_count: int = option(2, "words seen less often are unknown")
    features: int = option(128, "of a word's vector")
    filters: int = option(64, "filters of each window size, 3, 4 and 5")


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


class Classification(TextLabelling):
    """A classifier with its words and labels.

    Args:
        vocabulary:    of words, or of characters.
        labels:        all labels, in the order of their numbers.
        model:         a `TextClassifier` of these sizes.
        is_characters: whether ids are those of characters.
    """

    name = "classification"
    network = "text CNN"
    Settings = ClassificationSettings
    model: TextClassifier

    def __init__(
        self, vocabulary: Vocabulary, labels: Sequence[str], model: TextClassifier,
        is_characters: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(labels)
        self.vocabulary, self.model = vocabulary, model
        self.is_characters = is_characters

    @classmethod
    def begin(cls, parts: Parts, settings: ClassificationSettings) -> Self:
        """Words and labels of the texts to learn from, and an untrained model.

        Raises:
            DataError: all of them have one label.
        """
        labels = labels_of(parts.train)
        is_characters = settings.characters
        tokens = [words_of_text(text.text, is_characters) for text in parts.train]
        vocabulary = Vocabulary.build(tokens, settings.min_count)
        model = TextClassifier(
            len(vocabulary), len(labels), settings.features, settings.filters, settings.dropout
        )
        return cls(vocabulary, labels, model, is_characters)

    @property
    def num_ids(self) -> int:
        return len(self.vocabulary)

    def ids(self, text: str) -> Array:
        return self.vocabulary.encode(words_of_text(text, self.is_characters))

    def loss(self, graph: Graph, model: TextClassifier, example: LabelledIds) -> Node:
        return F.cross_entropy(model(graph, example.ids), example.label)

    def scores(self, texts: Sequence[str], matmul: str = FULL) -> list[Array]:
        """Scores of the labels of each text, (K,)."""
        ids = [self.ids(text) for text in texts]
        return predict(self.model, self.model, ids, matmul=matmul)

    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"words": self.vocabulary, **super().vocabularies()}

    def unknown(self, texts: Sequence[LabelledText]) -> float:
        """The share of words without a vector."""
        ids = np.concatenate([self.ids(text.text) for text in texts])
        return float(np.mean(ids == Vocabulary.unknown)) if ids.size else 0.0

    def description(self) -> dict[str, Any]:
        return {
            "words": self.vocabulary.entries, "labels": self.labels,
            "is_characters": self.is_characters, "dropout": self.model.dropout.p,
        }  # fmt: skip

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        fields = {"words": is_tokens, "labels": is_tokens, "is_characters": _is_switch}
        description = checked_description(info, {**fields, "dropout": is_share})
        vocabulary, labels = Vocabulary(description["words"]), description["labels"]
        rows = {"words": len(vocabulary), "network.project": len(labels)}
        features, width = table_widths(info, rows)
        model = TextClassifier(
            len(vocabulary), len(labels), features, width // len(WINDOWS), description["dropout"]
        )
        return cls(vocabulary, labels, model, description["is_characters"])


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)
