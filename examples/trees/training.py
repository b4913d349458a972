"""Common parts of the examples with trees: settings, loss, accuracy, messages of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import Node
from dynbatch import nodes as F
from dynbatch.models import Module
from dynbatch.tasks.options import option, share
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import train
from dynbatch.train import SentenceBatches, padding_ratio


@dataclass(frozen=True, kw_only=True)
class TreeSettings(TrainingSettings):
    """The sizes of a Tree-LSTM."""

    limit: int | None = option(None, "train on X trees, drawn at random (all)")
    batch_size: int = option(32, "trees in a mini-batch")
    dropout: float = option(0.0, "probability that a feature is dropped while training", share)
    warmup: int = option(100, "updates until the peak; then the rate falls as a cosine")
    embed: int = option(64, "features of an embedding")
    hidden: int = option(64, "features of a state")


def fit(model: Module, examples: Sequence[Any], settings: TreeSettings) -> str:
    """Train the model as the settings say. Returns its speed, and what padding would have cost.

    Args:
        examples: trees with `num_nodes`, and `labels`: the classes to find, one or one for each of
                  some nodes.
    """
    nodes = 0

    def counted_loss(graph: db.Graph, model: Any, example: Any) -> Node:
        nonlocal nodes
        nodes += example.num_nodes
        return loss(graph, model, example)

    begin = time.perf_counter()
    train(model, counted_loss, examples, settings, num_tokens=lambda one: len(one.labels))
    seconds = time.perf_counter() - begin
    batches = SentenceBatches(examples, settings.batch_size, settings.seed).epoch(0)
    ratio = np.mean([padding_ratio([one.num_nodes for one in batch]) for batch in batches])
    return (
        f"{nodes / seconds:,.0f} nodes per second in training; padded to the largest "
        f"tree, mini-batches would have {ratio:.2f} times the nodes"
    )


def loss(graph: db.Graph, model: Any, example: Any) -> Node:
    """Cross-entropy summed over the labels of one tree."""
    return F.cross_entropy(model.scores(graph, example), example.labels, reduction="sum")


def accuracy(model: Any, examples: Sequence[Any]) -> float:
    """The share of labels that have the highest score."""
    scores = db.predict(model, model.scores, examples)
    found = [one.argmax(-1) == ex.labels for one, ex in zip(scores, examples, strict=True)]
    return float(np.concatenate(found).mean())
