"""What the examples share: settings, the training loop, accuracy, and what a run reports."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import numpy as np

import dynbatch as db
from dynbatch import backend, optim
from dynbatch import nodes as F
from dynbatch.train import SentenceBatches, Trainer, padding_ratio
from dynbatch.train.batching import epoch_order
from examples.arguments import above_zero, positive, share

Array = np.ndarray[Any, np.dtype[Any]]


class Example(Protocol):
    """One tree: its size, and the classes to find, one or one for each of some nodes."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def labels(self) -> Array: ...


class Classifier(Protocol):
    """A model that scores classes: (V,), or (n, V) for n labels."""

    def scores(self, graph: db.Graph, example: Any, /) -> db.Node: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on. `limit` is the number of trees to train on, None for all."""

    limit: int | None = None
    epochs: int = 5
    batch_size: int = 32
    embed: int = 64
    hidden: int = 64
    dropout: float = 0.0
    lr: float = 2e-3
    seed: int = 0
    threads: int | None = None
    device: str = "cpu"
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Speed:
    """Of training: nodes a second, and the mean padding ratio of the mini-batches, in nodes."""

    nodes_per_second: float
    padding_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.nodes_per_second:,.0f} nodes per second in training; padded to the largest "
            f"tree, mini-batches would have {self.padding_ratio:.2f} times the nodes"
        )


def begin(
    command: str, description: str, usual: Settings, argv: Sequence[str] | None = None
) -> Settings:
    """The settings of a command line, `usual` where it says nothing; seeds and threads are set."""
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.set_defaults(**asdict(usual))
    counts = {
        "limit": "trees to train on",
        "epochs": "passes over them",
        "batch-size": "trees in a mini-batch",
        "embed": "features of an embedding",
        "hidden": "features of a state",
        "threads": "threads",
    }
    for name, what in counts.items():
        parser.add_argument(f"--{name}", type=positive, metavar="N", help=f"{what} (%(default)s)")
    parser.add_argument("--dropout", type=share, metavar="P", help="probability (%(default)s)")
    parser.add_argument("--lr", type=above_zero, metavar="X", help="of Adam (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="of all drawn (%(default)s)")
    parser.add_argument("--device", choices=backend.NAMES, help="where it runs (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    given = vars(parser.parse_args(argv))
    settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
    if settings.threads is not None:
        db.set_num_threads(settings.threads)
    db.seed(settings.seed)
    return settings


def first(examples: list[Any], settings: Settings) -> list[Any]:
    """`limit` of the examples, drawn by the seed; all of them, in order, without a limit."""
    if settings.limit is None:
        return examples
    order = epoch_order(len(examples), settings.seed, epoch=-1)
    return [examples[index] for index in order[: settings.limit].tolist()]


def fit(model: Any, train: Sequence[Example], dev: Sequence[Example], settings: Settings) -> Speed:
    """Train under a warm-up and a cosine; prints the accuracy on `dev` after each epoch."""
    model.to(settings.device)
    batches = SentenceBatches(train, settings.batch_size, settings.seed)
    optimizer = optim.Adam(model, lr=settings.lr)
    updates = settings.epochs * len(batches)
    trainer = Trainer(
        model,
        optimizer,
        loss,
        batches,
        num_tokens=lambda example: len(example.labels),
        schedule=optim.Cosine(optimizer, updates, updates // 20, settings.lr / 100),
        clip_norm=5.0,
        show_progress=not settings.quiet,
    )
    seconds = 0.0
    for epoch in range(1, settings.epochs + 1):
        begun = time.perf_counter()
        trainer.fit(epoch)
        seconds += time.perf_counter() - begun
        print(f"  epoch {epoch}: {accuracy(model, dev):.2%} on the development set", flush=True)
    nodes = settings.epochs * sum([example.num_nodes for example in train])
    ratios = [padding_ratio([one.num_nodes for one in batch]) for batch in batches.epoch(0)]
    return Speed(nodes / seconds, float(np.mean(ratios)))


def loss(graph: db.Graph, model: Classifier, example: Example) -> db.Node:
    """Cross-entropy summed over the labels of one tree."""
    return F.cross_entropy(model.scores(graph, example), example.labels, reduction="sum")


def accuracy(model: Any, examples: Sequence[Example], batch_size: int = 64) -> float:
    """The share of labels that have the highest score."""
    right = total = 0
    model.eval()
    _, parameter = next(model.named_parameters())
    for start in range(0, len(examples), batch_size):
        batch = examples[start : start + batch_size]
        with db.Graph(parameter.device, grad=False) as graph:
            scores = graph.values([model.scores(graph, example) for example in batch])
        found = [
            one.argmax(-1) == example.labels for one, example in zip(scores, batch, strict=True)
        ]
        right += sum([int(one.sum()) for one in found])
        total += sum([one.size for one in found])
    return right / total
