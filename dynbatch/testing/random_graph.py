"""`RandomGraph`: a graph of several sentences written as data, to be built again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, sub
from typing import NamedTuple

import numpy as np

from dynbatch import nodes as F
from dynbatch.nodes.node import Node, Owner
from dynbatch.parameter import Parameter
from dynbatch.testing.random_cells import CELL_OPERATIONS
from dynbatch.testing.random_functions import FUNCTION_OPERATIONS
from dynbatch.testing.random_program import (
    NODE_OPERATIONS,
    PARAMETERS,
    Function,
    ProgramOperation,
    RandomSentence,
    SentenceProgram,
)

TAILS = ("mean", "sum", "square")


def _by_pairs(losses: Sequence[Node]) -> Node:
    if len(losses) < 2:
        return losses[0]
    half = len(losses) // 2
    first, second = _by_pairs(losses[:half]), _by_pairs(losses[half:])
    return first + second if half % 2 else first - second


def _from_zero(losses: Sequence[Node]) -> Node:
    total: Node = sum(losses[1:], 0 + losses[0])
    return total


JOINS: dict[str, Callable[[Sequence[Node]], Node]] = {
    "F.sum": F.sum,
    "+": lambda losses: reduce(add, losses),
    "sum": _from_zero,
    "-": lambda losses: reduce(sub, losses),
    "pairs": _by_pairs,
}
"""How losses become one number."""

Unread = Callable[[Sequence[Node], Sequence[Node], Mapping[str, Parameter]], Node]


def _joined(x: Node, y: Node) -> Node:
    """Sum and difference, as losses are joined, of values that backward would read."""
    root = F.sqrt(F.exp(F.tanh(x)))
    return root + F.sigmoid(y) - F.tanh(root)


def _apart(
    nodes: Sequence[Node], losses: Sequence[Node], parameters: Mapping[str, Parameter]
) -> Node:
    x = F.input(losses[0].graph, [[0.5, -1.0], [1.0, 2.0], [0.0, 1.5]])
    return _joined(x, F.layer_norm(F.linear(x, parameters["weight22"])))


UNREAD: dict[str, Unread] = {
    "sentence": lambda nodes, losses, parameters: _joined(nodes[-1], nodes[-1]),
    "losses": lambda nodes, losses, parameters: _joined(losses[0], losses[-1]),
    "apart": _apart,
}
"""Nodes that no loss reads: of the last sentence, of several, of one of their own."""

OPERATIONS: dict[str, ProgramOperation] = {
    **NODE_OPERATIONS,
    **FUNCTION_OPERATIONS,
    **CELL_OPERATIONS,
}
"""What instructions do, by name."""


class Built(NamedTuple):
    """A random graph inside a `Graph`: losses, kept nodes by name, and all nodes to read."""

    loss: Node
    losses: list[Node]
    kept: dict[str, Node]
    nodes: list[Node]


@dataclass
class RandomGraph:
    """A graph of several sentences, built the same every time.

    Its operands are chosen freely, so that it has diamonds, nodes used twice by one operation,
    nodes that nothing uses, nodes shared by sentences, widths that mix, and inputs that need no
    gradient; cells applied step by step among nodes of whole sentences. Values are float64.

    Args:
        sentences: length and program of each.
        count:     the sentences are repeated, with other inputs, until there are so many.
        reads:     a value is read while the graph grows after every so many nodes; 0: never.
        tail:      what is made of the losses: their "mean", "sum", or "square" of the mean.
        joins:     how they are added up, or subtracted: a name of `JOINS`.
        unread:    kept nodes that no loss reads: names of `UNREAD`.
        backwards: of 2, the first is from the loss of the first sentence, after all has been run.
        frozen:    names of the parameters that are frozen.
        functions: functions of a matrix that programs may call, for node types of your own.
        seed:      of inputs, ids and initial parameters.
        inline:    cells are called as the functions they were made of.
        numbers:   which sentences are built, in this order. Default: all, in theirs.
    """

    sentences: tuple[RandomSentence, ...]
    count: int = 0
    reads: int = 0
    tail: str = "mean"
    backwards: int = 1
    frozen: frozenset[str] = frozenset()
    functions: Sequence[Function] = ()
    seed: int = 0
    inline: bool = False
    numbers: Sequence[int] | None = None
    joins: str = "F.sum"
    unread: Sequence[str] = ()

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        self.parameters: dict[str, Parameter] = {}
        for name, shape in PARAMETERS.items():
            parameter = Parameter(generator.standard_normal(shape), name)
            parameter.frozen = name in self.frozen
            self.parameters[name] = parameter

    def __len__(self) -> int:
        return max(len(self.sentences), self.count)

    def build(self, graph: Owner) -> Built:
        """Make the nodes in `graph`, whose dtype must be float64."""
        shared = [F.parameter(graph, self.parameters["vector"]), F.input(graph, [0.5, -1.0])]
        built = Built(shared[0], [], {"shared input": shared[1].keep()}, list(shared))
        for number in range(len(self)) if self.numbers is None else self.numbers:
            sentence = self.sentences[number % len(self.sentences)]
            generator = np.random.default_rng((self.seed, number))
            program = SentenceProgram(
                sentence, graph, generator, shared, self.parameters, self.functions, self.inline
            )
            built.losses.extend(program.run(OPERATIONS, self.reads))
            built.nodes.extend(program.nodes)
            for k, node in enumerate(program.kept):
                built.kept[f"sentence {number}, kept node {k} {node.shape}"] = node
        for k, name in enumerate(self.unread):
            node = UNREAD[name](built.nodes, built.losses, self.parameters).keep()
            built.kept[f"unread node {k} {node.shape}"] = node
        if self.joins == "F.sum" and self.tail != "sum":
            total = F.mean(built.losses)
        else:
            total = JOINS[self.joins](built.losses)
            total = total if self.tail == "sum" else total / len(built.losses)
        return built._replace(loss=total * total if self.tail == "square" else total)
