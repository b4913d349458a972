"""The inputs of a model of a sentence, and the table of all kinds of models."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

WORDS, TAGS, EMBED, HIDDEN = 600, 23, 24, 40
Made: TypeAlias = tuple[db.Node, db.Node]
Build: TypeAlias = Callable[["Sentence"], Made | Generator[Any, Any, Made]]
KINDS: dict[str, Callable[[], Build]] = {}

_rows = np.random.default_rng(8).standard_normal((3, WORDS, 2 * HIDDEN)).astype(np.float32)


class Sentence:
    """A sentence's words, and what a model has read of them: nodes and rows of tables."""

    def __init__(self, graph: db.Graph, ids: np.ndarray) -> None:
        self.graph = graph
        self.ids = ids
        self.inputs: list[db.Node] = []
        self.tables: list[models.Embedding] = []

    def rows(self, width: int = EMBED, number: int = 0, every: int = 1) -> db.Node:
        """A row for each word, or for every second or third; `number` tells such inputs apart."""
        self.inputs.append(F.input(self.graph, _rows[number, self.ids[::every], :width]).keep())
        return self.inputs[-1]

    def vector(self, width: int = HIDDEN) -> db.Node:
        """A vector that depends on the first word: a first state, say."""
        self.inputs.append(F.input(self.graph, _rows[2, self.ids[0], :width]).keep())
        return self.inputs[-1]

    def words(self, table: models.Embedding, ids: Any = None) -> db.Node:
        """Vectors of the words, or of bags of them, each of which is in one bag."""
        self.tables.append(table)
        return table(self.graph, self.ids if ids is None else ids)


def kind(make: Callable[[], Build]) -> Callable[[], Build]:
    """Enter a kind: a function that makes a model of a sentence."""
    KINDS[make.__name__] = make
    return make


def squares(y: db.Node) -> Made:
    """A value, and the sum of its squares as its loss."""
    return y, F.sum(y * y)


def parameters(**shapes: tuple[int, ...]) -> SimpleNamespace:
    """Parameters of these names and shapes."""
    rng = np.random.default_rng(7)
    draw = {name: 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}
    return SimpleNamespace(**{k: db.Parameter(v.astype(np.float32), k) for k, v in draw.items()})
