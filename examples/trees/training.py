"""What the examples with trees share: settings, loss, accuracy, what training says of itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import dynbatch as db
from dynbatch import Node
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.models import Module
from dynbatch.tasks.options import option, share
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import train
from dynbatch.train import SentenceBatches, padding_ratio


class Example(Protocol):
    """One tree: its size, and the classes to find, one or one for each of some nodes."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def labels(self) -> Array: ...


class Classifier(Protocol):
    """A model that scores classes: (V,), or (n, V) for n labels."""

    def scores(self, graph: db.Graph, example: Any, /) -> Node: ...


@dataclass(frozen=True, kw_only=True)
class TreeSettings(TrainingSettings):
    """The sizes of a Tree-LSTM."""

    limit: int | None = option(None, "train on X trees, drawn at random (all)")
    batch_size: int = option(32, "trees in a mini-batch")
    dropout: float = option(0.0, "probability that a feature is dropped while training", share)
    warmup: int = option(100, "updates until the peak; then the rate falls as a cosine")
    embed: int = option(64, "features of an embedding")
    hidden: int = option(64, "features of a state")


@dataclass(frozen=True, slots=True)
class Speed:
    """Nodes a second in training, and the mean padding ratio of the mini-batches, in nodes."""

    nodes_per_second: float
    padding_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.nodes_per_second:,.0f} nodes per second in training; padded to the largest "
            f"tree, mini-batches would have {self.padding_ratio:.2f} times the nodes"
        )


def fit(model: Module, examples: Sequence[Example], settings: TreeSettings) -> Speed:
    """Train the model as the settings say."""
    nodes = 0

    def counted_loss(graph: db.Graph, model: Any, example: Example) -> Node:
        nonlocal nodes
        nodes += example.num_nodes
        return loss(graph, model, example)

    begin = time.perf_counter()
    train(model, counted_loss, examples, settings, num_tokens=lambda one: len(one.labels))
    seconds = time.perf_counter() - begin
    batches = SentenceBatches(examples, settings.batch_size, settings.seed).epoch(0)
    ratios = [padding_ratio([one.num_nodes for one in batch]) for batch in batches]
    return Speed(nodes / seconds, float(np.mean(ratios)))


def loss(graph: db.Graph, model: Classifier, example: Example) -> Node:
    """Cross-entropy summed over the labels of one tree."""
    return F.cross_entropy(model.scores(graph, example), example.labels, reduction="sum")


def accuracy(model: Any, examples: Sequence[Example]) -> float:
    """The share of labels that have the highest score."""
    scores = db.predict(model, model.scores, examples)
    found = [one.argmax(-1) == ex.labels for one, ex in zip(scores, examples, strict=True)]
    return float(np.concatenate(found).mean())
