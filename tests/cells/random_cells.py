"""Random cells: small expressions over token, state, parameters and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from tests.cells.step_by_step import Batch, Sentence

Choose = Callable[[Sequence[Any]], Any]

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
    "softmax": F.softmax,
    "layer_norm": lambda v: F.layer_norm(v) if v.width > 1 else v,
    "minus largest": lambda v: v - F.max(v),
    "times first": lambda v: v * v[0],
    "halves swapped": lambda v: F.concat(F.chunk(v, 2)[::-1]) if v.width > 1 else v,
}
BINARY: dict[str, Callable[[db.Node, db.Node], db.Node]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (1.5 + F.sigmoid(b)),
}
KINDS = (
    "gates", "binary", "unary", "linear", "binary", "binary", "unary", "binary", "slice", "chunk",
    "concat", "constant", "parameter", "memory",
)  # fmt: skip


@dataclass
class Recipe:
    """A cell as a list of steps, each a kind and its arguments; operands by their number.

    Values are numbered: the token, the parts of the state, then what the steps make.
    """

    token: int
    states: tuple[int, ...]
    memory: int
    weights: list[tuple[int, ...]]
    steps: list[tuple[Any, ...]]
    output: int
    following: tuple[int, ...]
    given: bool
    reverse: bool
    lengths: tuple[int, ...]

    def cell(self) -> db.cells.Cell:
        """The cell that follows the recipe."""

        @db.cell
        def random_cell(x: Any, state: Any, p: Any, memory: Any = None) -> Any:
            values = [x, *(state if len(self.states) > 1 else (state,))]
            for step in self.steps:
                values += self._made(step, values, p, memory)
            following = tuple([values[k] for k in self.following])
            return values[self.output], following if len(self.states) > 1 else following[0]

        return random_cell

    @staticmethod
    def _made(step: tuple[Any, ...], values: list[Any], p: Any, memory: Any) -> list[Any]:
        kind, *arguments = step
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
        assert kind == "memory"
        return [F.attention(values[arguments[0]], memory)]

    def batch(self) -> Batch:
        """Sentences and parameters for it."""
        rng = np.random.default_rng(len(self.steps))
        parameters = [
            db.Parameter(0.7 * rng.standard_normal(shape), f"weight {shape}")
            for shape in self.weights
        ]
        made = [
            Sentence(
                rng.standard_normal((length, self.token)),
                tuple([rng.standard_normal(w) for w in self.states]) if self.given else self.states,
                (rng.standard_normal((k % 3 + (self.memory == 1), self.memory)),)
                if self.memory
                else (),
            )
            for k, length in enumerate(self.lengths)
        ]
        params = dict(enumerate(parameters))
        return Batch(made, params, parameters, len(self.states) == 1, self.reverse)


class _Writer:
    """Writes a recipe step by step; `choose` decides.

    Most widths are 1, 2 or 4 times `unit`, and what nothing has read yet is read first, so that the
    values of a cell hang together.
    """

    def __init__(
        self, choose: Choose, unit: int, token: int, states: tuple[int, ...], memory: int
    ) -> None:
        self.choose = choose
        self.unit = unit
        self.memory = memory
        self.widths = [token, *states]
        self.unread = {*range(len(self.widths))}
        self.weights: list[tuple[int, ...]] = []
        self.steps: list[tuple[Any, ...]] = []

    def add(self, step: tuple[Any, ...], *widths: int) -> None:
        """One more step, which makes values of these widths."""
        self.steps.append(step)
        self.unread |= {*range(len(self.widths), len(self.widths) + len(widths))}
        self.widths += widths

    def operand(self, widths: Sequence[int] = ()) -> int:
        """A value of one of these widths, or of any if there is none."""
        found = [k for k, width in enumerate(self.widths) if width in widths]
        found = found or [*range(len(self.widths))]
        newest = [k for k in found if k in self.unread][-4:]
        taken = int(self.choose((newest if newest and self.choose([1, 0]) else found)[::-1]))
        self.unread.discard(taken)
        return taken

    def weight(self, *shape: int) -> int:
        """A parameter of this shape: an old one, if there is one and so it falls, or a new one."""
        known = [k for k, other in enumerate(self.weights) if other == shape]
        if known and self.choose([False, False, True]):
            return int(self.choose(known))
        self.weights.append(shape)
        return len(self.weights) - 1

    def linear(self, source: int, width: int) -> int:
        """A linear map of a value; the number of the result."""
        weight = self.weight(width, self.widths[source])
        bias = self.weight(width) if self.choose([True, False]) else None
        self.add(("linear", source, weight, bias), width)
        return len(self.widths) - 1

    def parts(self, source: int, parts: int) -> list[int]:
        """A value in equal parts; their numbers."""
        self.unread.discard(source)
        width = self.widths[source] // parts
        self.add(("chunk", source, parts), *[width] * parts)
        return [*range(len(self.widths) - parts, len(self.widths))]

    def gates(self) -> None:
        """What recurrent cells are made of: maps of token and state, summed, cut and squashed."""
        choose, parts = self.choose, self.choose([2, 3, 4])
        width = choose([1, 2]) * self.unit
        if choose([True, False]):
            maps = [self.linear(k, width * parts) for k in (0, self.operand())]
            self.unread -= {*maps}
            self.add(("binary", "add", *maps), width * parts)
            gates = self.parts(len(self.widths) - 1, parts)
        else:
            gates = []
            for _ in range(parts):
                maps = [self.linear(k, width) for k in (0, self.operand())]
                self.unread -= {*maps}
                self.add(("binary", "add", *maps), width)
                gates.append(len(self.widths) - 1)
        for k in gates:
            if choose([True, True, True, False]):
                self.unread.discard(k)
                self.add(("unary", choose(["sigmoid", "tanh"]), k), width)

    def step(self) -> None:
        """One random step, or the few of a gate."""
        choose, unit = self.choose, self.unit
        kind = choose(KINDS)
        if kind == "linear":
            self.linear(self.operand(), choose([1, 2, 4]) * unit)
        elif kind == "gates":
            self.gates()
        elif kind == "unary":
            a = self.operand()
            self.add(("unary", choose([*UNARY]), a), self.widths[a])
        elif kind == "binary":
            a = self.operand()
            b = self.operand([self.widths[a]] if choose([True, True, False]) else [1, unit])
            if self.widths[b] not in (1, self.widths[a]):
                a, b = b, b
            self.add(("binary", choose([*BINARY]), a, b), self.widths[a])
        elif kind == "slice":
            a = self.operand()
            grain = unit if self.widths[a] % unit == 0 and choose([True, False]) else 1
            start = choose(range(0, self.widths[a], grain))
            stop = choose(range(start + grain, self.widths[a] + 1, grain))
            self.add(("slice", a, start, stop), stop - start)
        elif kind == "chunk":
            a = self.operand()
            self.parts(a, choose([n for n in range(1, 5) if self.widths[a] % n == 0]))
        elif kind == "concat":
            sources = [self.operand() for _ in range(choose([2, 3]))]
            if sum([self.widths[k] for k in sources]) <= 12:
                self.add(("concat", *sources), sum([self.widths[k] for k in sources]))
        elif kind == "constant":
            width = choose([1, 2]) * unit
            self.add(("constant", width), width)
        elif kind == "parameter":
            width = choose([1, 2]) * unit
            self.add(("parameter", self.weight(width)), width)
        elif self.memory in self.widths:
            self.add(("memory", self.operand([self.memory])), self.memory)

    def state(self, width: int) -> int:
        """The next value of a part of the state."""
        found = [k for k, other in enumerate(self.widths) if other == width]
        fresh = [k for k in found if k in self.unread][-2:] or found[-3:]
        return int(self.choose((fresh if self.choose([1, 1, 0]) else found)[::-1]))


def recipe(choose: Choose, most_steps: int = 12) -> Recipe:
    """A random recipe; `choose` picks one of several."""
    unit = choose([2, 1, 3])
    token = choose([1, 2]) * unit
    states = tuple([choose([1, 1, 2]) * unit for _ in range(choose([1, 2, 2, 3]))])
    writer = _Writer(choose, unit, token, states, choose([0, 0, unit]))
    for _ in range(choose(range(1, most_steps + 1))):
        writer.step()
    return Recipe(
        token,
        states,
        writer.memory,
        writer.weights,
        writer.steps,
        writer.operand(),
        tuple([writer.state(width) for width in states]),
        choose([True, False]),
        choose([False, True]),
        choose([(3, 1, 0, 2, 4), (2, 2), (1,), (0, 0), (1, 3, 3, 0, 2, 1, 1, 4, 2)]),
    )
