"""The tagger with its LSTM spelt out as a user would, to be timed beside `models.LSTM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.networks import Array, TaggerSizes
from benchmarks.workloads.contender import DynbatchContender
from dynbatch import models
from dynbatch import nodes as F

GATES = "ifgo"


@db.cell
def lstm_by_hand(x: Any, state: Any, p: Any) -> Any:
    """One step of an LSTM, its four gates in one matrix."""
    h, c = state
    i, f, g, o = F.chunk(F.linear(x, p.W) + F.linear(h, p.U, p.b), 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, (h, c)


@db.cell
def lstm_of_four_matrices(x: Any, state: Any, p: Any) -> Any:
    """The step as textbooks print it, a matrix for each gate."""
    h, c = state
    i = F.sigmoid(F.linear(x, p.W_i) + F.linear(h, p.U_i, p.b_i))
    f = F.sigmoid(F.linear(x, p.W_f) + F.linear(h, p.U_f, p.b_f))
    g = F.tanh(F.linear(x, p.W_g) + F.linear(h, p.U_g, p.b_g))
    o = F.sigmoid(F.linear(x, p.W_o) + F.linear(h, p.U_o, p.b_o))
    c = f * c + i * g
    h = o * F.tanh(c)
    return h, (h, c)


class Direction(models.Module):
    """Weights of one direction as the cell names them, and the cell's run along a sentence."""

    def __init__(self, values: Mapping[str, Array], suffix: str, is_split: bool) -> None:
        for name, source in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
            value = values[f"encoder.{source}_l0{suffix}"]
            if is_split:
                for gate, rows in zip(GATES, np.split(value, len(GATES)), strict=True):
                    setattr(self, f"{name}_{gate}", db.Parameter(rows.copy()))
            else:
                setattr(self, name, db.Parameter(value.copy()))
        self._cell = lstm_of_four_matrices if is_split else lstm_by_hand
        self._hidden = len(value) // len(GATES)
        self._is_reverse = suffix == "_reverse"

    def __call__(self, xs: db.Node) -> db.Node:
        start = (self._hidden, self._hidden)  # h and c of zeros
        ys, _ = db.scan(self._cell, xs, init=start, params=self, reverse=self._is_reverse)
        return ys


class UserCellTagger(DynbatchContender):
    """The tagger with a bi-LSTM made of two scans of a cell of one's own."""

    is_split = False

    def __init__(
        self, sizes: TaggerSizes, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        self._embedding = models.Embedding(sizes.vocabulary, sizes.embedding)
        self._output = models.Linear(2 * sizes.hidden, sizes.tags)
        for module, name in ((self._embedding, "embedding"), (self._output, "output")):
            own = {key: values[f"{name}.{key}"] for key, _ in module.named_parameters()}
            module.load_state_dict(own)
        self._left = Direction(values, "", self.is_split)
        self._right = Direction(values, "_reverse", self.is_split)
        modules = (self._embedding, self._left, self._right, self._output)
        parameters = [parameter for module in modules for parameter in module.parameters()]
        super().__init__(parameters, device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        embedded = self._embedding(graph, source)
        states = F.concat([self._left(embedded), self._right(embedded)])
        return F.cross_entropy(self._output(states), target, reduction="sum")


class FourMatrixTagger(UserCellTagger):
    """The tagger whose cell has a matrix for each gate."""

    is_split = True
