"""Writes the recipes of random cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.cells.random_cells import BINARY, UNARY, Recipe

Choose = Callable[[Sequence[Any]], Any]

KINDS = (
    "gates", "binary", "unary", "linear", "binary", "binary", "unary", "binary", "slice", "chunk",
    "concat", "constant", "parameter", "memory", "reduce", "norm",
    "columns",
)  # fmt: skip


class _Writer:
    """Writes a recipe step by step; `choose` decides.

    Most widths are 1, 2 or 4 times `unit`, and what nothing has read yet is read first, so that the
    values of a cell hang together. Half of the cells have few kinds of operators, so that equal
    ones meet.
    """

    def __init__(
        self, choose: Choose, unit: int, tokens: Any, states: tuple[int, ...], memory: int
    ) -> None:
        self.choose = choose
        self.unit = unit
        self.memory = memory
        self.tokens = [*range(len(tokens) if isinstance(tokens, tuple) else 1)]
        self.widths = [*(tokens if isinstance(tokens, tuple) else (tokens,)), *states]
        self.unread = {*range(len(self.widths))}
        self.weights: list[tuple[int, ...]] = []
        self.steps: list[tuple[Any, ...]] = []
        few = choose([True, False])
        self.kinds = [choose(KINDS) for _ in range(4)] if few else KINDS
        self.unary = [choose([*UNARY]) for _ in range(2)] if few else [*UNARY]

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

    def token(self) -> int:
        """A token, of any of the sentences side by side."""
        return int(self.choose(self.tokens)) if len(self.tokens) > 1 else 0

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
        """The operations of recurrent cells: maps of token and state, summed, cut and squashed."""
        choose, parts = self.choose, self.choose([2, 3, 4])
        width = choose([1, 2]) * self.unit
        way = choose(["sum cut", "maps cut", "one by one"])
        if way == "sum cut":
            maps = [self.linear(k, width * parts) for k in (self.token(), self.operand())]
            self.unread -= {*maps}
            self.add(("binary", "add", *maps), width * parts)
            gates = self.parts(len(self.widths) - 1, parts)
        elif way == "maps cut":
            cut = [
                self.parts(self.linear(k, width * parts), parts)
                for k in (self.token(), self.operand())
            ]
            gates = []
            for a, b in zip(*cut, strict=True):
                if choose([True, True, False]):
                    self.unread -= {a, b}
                    self.add(("binary", "add", a, b), width)
                    gates.append(len(self.widths) - 1)
        else:
            gates = []
            for _ in range(parts):
                maps = [self.linear(k, width) for k in (self.token(), self.operand())]
                self.unread -= {*maps}
                self.add(("binary", "add", *maps), width)
                gates.append(len(self.widths) - 1)
        for k in gates:
            if choose([True, True, True, False]):
                self.unread.discard(k)
                self.add(("unary", choose(["sigmoid", "tanh"]), k), width)

    def columns(self) -> None:
        """A function of some single columns of a value that is read as a whole too."""
        source = self.operand()
        function = self.choose(self.unary)
        for k in self.parts(source, self.widths[source]):
            if self.choose([True, True, False]):
                self.unread.discard(k)
                self.add(("unary", function, k), 1)
        self.unread.add(source)

    def step(self) -> None:
        """One random step, or the few of a gate."""
        choose, unit = self.choose, self.unit
        kind = choose(self.kinds)
        if kind == "linear":
            self.linear(self.operand(), choose([1, 2, 4]) * unit)
        elif kind == "gates":
            self.gates()
        elif kind == "columns":
            self.columns()
        elif kind == "unary":
            a = self.operand()
            self.add(("unary", choose(self.unary), a), self.widths[a])
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
        elif kind == "reduce":
            self.add(("reduce", choose(["sum", "max", "logsumexp"]), self.operand()), 1)
        elif kind == "norm":
            a = self.operand()
            gain, bias = self.weight(self.widths[a]), self.weight(self.widths[a])
            self.add(("norm", a, gain, bias), self.widths[a])
        elif self.memory in self.widths:
            way = choose(["attention", "mapped", "general", "additive", "total"])
            shape = (self.memory,) if way == "additive" else (self.memory, self.memory)
            weight = self.weight(*shape)
            self.add(("memory", way, self.operand([self.memory]), weight), self.memory)

    def state(self, width: int) -> int:
        """The next value of a part of the state."""
        found = [k for k, other in enumerate(self.widths) if other == width]
        fresh = [k for k in found if k in self.unread][-2:] or found[-3:]
        return int(self.choose((fresh if self.choose([1, 1, 0]) else found)[::-1]))


def recipe(choose: Choose, most_steps: int = 12, side_by_side: bool = False) -> Recipe:
    """A random recipe; `choose` picks one of several.

    Args:
        side_by_side: whether a scan may have several sentences.
    """
    unit = choose([2, 1, 3])
    token: Any = choose([1, 2]) * unit
    if side_by_side and choose([False, False, True]):
        token = tuple([choose([1, 2]) * unit for _ in range(choose([2, 1, 3]))])
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
        choose(["itself", "dict", "list", "tuple"]),
    )
