"""Random cells: small expressions over token, state, parameters and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from tests.cells.step_by_step import Batch, Sentence

UNARY: dict[str, Callable[[db.Node], db.Node]] = {
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "silu": F.silu,
    "negative": lambda v: -v,
    "square": lambda v: F.tanh(v) ** 2,
    "exp": lambda v: F.exp(-F.softplus(v)),
    "sqrt": lambda v: F.sqrt(F.softplus(v) + 0.5),
    "log": lambda v: F.log(1.5 + F.sigmoid(v)),
    "scale": lambda v: 0.5 * v,
    "shift": lambda v: v + 0.25,
    "one minus": lambda v: 1 - v,
    "clip": lambda v: F.clip(v, -0.5, 0.75),
    "gelu": F.gelu,
    "elu": F.elu,
    "leaky relu": F.leaky_relu,
    "absolute": F.abs,
    "reciprocal": lambda v: 1 / (1.5 + F.sigmoid(v)),
    "doubled": lambda v: v + v,
    "dropout": lambda v: F.dropout(v, 0.5),
    "softmax": F.softmax,
    "log softmax": F.log_softmax,
    "layer_norm": lambda v: F.layer_norm(v) if v.width > 1 else v,
    "minus largest": lambda v: v - F.max(v),
    "minus mean": lambda v: v - F.mean(v),
    "plus place of largest": lambda v: v + 0.1 * F.argmax(v),
    "times first": lambda v: v * v[0],
    "halves swapped": lambda v: F.concat(F.chunk(v, 2)[::-1]) if v.width > 1 else v,
}
BINARY: dict[str, Callable[[db.Node, db.Node], db.Node]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (1.5 + F.sigmoid(b)),
    "gate": lambda a, b: F.sigmoid(a) * b + (1 - F.sigmoid(a)) * a,
    "share": lambda a, b: F.softmax(F.stack([F.sum(a), F.sum(b)]))[0] * a,
}


# What a cell is given its parameters as; they are p[0], p[1], … in each.
HOLDERS: dict[str, Callable[[list[db.Parameter]], Any]] = {
    "dict": lambda parameters: dict(enumerate(parameters)),
    "list": list,
    "tuple": tuple,
    "itself": lambda parameters: parameters[0] if len(parameters) == 1 else parameters,
}


@dataclass
class Recipe:
    """A cell as a list of steps, each a kind and its arguments; operands by their number.

    Values are numbered: the token, or one of each sentence side by side; the parts of the state;
    then what the steps make.
    """

    token: int | tuple[int, ...]
    states: tuple[int, ...]
    memory: int
    weights: list[tuple[int, ...]]
    steps: list[tuple[Any, ...]]
    output: int
    following: tuple[int, ...]
    given: bool
    reverse: bool
    lengths: tuple[int, ...]
    holder: str = "dict"

    def cell(self) -> db.cells.Cell:
        """The cell that follows the recipe."""

        @db.cell
        def random_cell(x: Any, state: Any, p: Any, memory: Any = None) -> Any:
            tokens = x if isinstance(self.token, tuple) else (x,)
            values = [*tokens, *(state if len(self.states) > 1 else (state,))]
            for step in self.steps:
                values += self._made(step, values, p, memory)
            following = tuple([values[k] for k in self.following])
            return values[self.output], following if len(self.states) > 1 else following[0]

        return random_cell

    @staticmethod
    def _made(step: tuple[Any, ...], values: list[Any], p: Any, memory: Any) -> list[Any]:
        kind, *arguments = step
        p = [p] if isinstance(p, db.Parameter) else p
        if kind == "linear":
            source, weight, bias = arguments
            return [F.linear(values[source], p[weight], None if bias is None else p[bias])]
        if kind == "unary":
            return [UNARY[arguments[0]](values[arguments[1]])]
        if kind == "binary":
            name, a, b = arguments
            return [BINARY[name](values[a], values[b])]
        if kind == "slice":
            source, start, stop = arguments
            return [F.slice(values[source], start, stop)]
        if kind == "chunk":
            return F.chunk(values[arguments[0]], arguments[1])
        if kind == "concat":
            return [F.concat([values[k] for k in arguments])]
        graph = values[0].graph
        if kind == "constant":
            return [F.constant(graph, 0.5, (arguments[0],))]
        if kind == "parameter":
            return [F.parameter(graph, p[arguments[0]])]
        if kind == "reduce":
            return [F.unsqueeze(getattr(F, arguments[0])(values[arguments[1]]))]
        if kind == "norm":
            return [F.layer_norm(values[arguments[0]], p[arguments[1]], p[arguments[2]])]
        return [Recipe._read(memory, values, p, *arguments)]

    @staticmethod
    def _read(memory: Any, values: list[Any], p: Any, way: str, source: int, weight: int) -> Any:
        if way == "attention":
            return F.attention(values[source], memory)
        if way == "mapped":
            return F.attention(values[source], F.linear(memory, p[weight]), memory)
        if way == "general":
            return F.general_attention(values[source], memory, None, p[weight])
        if way == "additive":
            return F.additive_attention(values[source], memory, F.tanh(memory), p[weight])
        assert way == "total"
        return F.sum(F.linear(memory, p[weight]), dim=0)

    def batch(self, dtype: str = "float64") -> Batch:
        """Sentences and parameters for it."""
        rng = np.random.default_rng(len(self.steps))
        parameters = [
            db.Parameter((0.7 * rng.standard_normal(shape)).astype(dtype), f"weight {shape}")
            for shape in self.weights
        ]
        made = [
            Sentence(
                tuple([rng.standard_normal((length, width)) for width in self.token])
                if isinstance(self.token, tuple)
                else rng.standard_normal((length, self.token)),
                tuple([rng.standard_normal(w) for w in self.states]) if self.given else self.states,
                (rng.standard_normal((k % 3 + (self.memory == 1), self.memory)),)
                if self.memory
                else (),
            )
            for k, length in enumerate(self.lengths)
        ]
        params = HOLDERS[self.holder](parameters)
        return Batch(made, params, parameters, len(self.states) == 1, self.reverse)
