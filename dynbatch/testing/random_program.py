"""`SentenceProgram`: the sentence of a random graph, built operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch import nodes as F
from dynbatch.nodes.node import Node, Owner
from dynbatch.parameter import Parameter
from dynbatch.testing.probe import probe

Function = Callable[[Node], Node]

WIDTHS = (1, 2, 3)
STATE_WIDTHS = (2, 3)
VOCABULARY = 5

# Shapes of the shared parameters: weight12 maps width 1 to width 2.
PARAMETERS: dict[str, tuple[int, ...]] = {"table": (VOCABULARY, 2), "vector": (3,)}
PARAMETERS.update({f"weight{i}{o}": (o, i) for i in WIDTHS for o in WIDTHS})
PARAMETERS.update({f"gate{i}{o}": (o, i) for i in WIDTHS for o in WIDTHS[1:]})
PARAMETERS.update({f"bias{o}": (o,) for o in WIDTHS})

# Products of products overflow; a program has at most so many, later ones become sums.
MOST_PRODUCTS = 4


class Instruction(NamedTuple):
    """One operation of a random program; `a` and `b` choose operands among the nodes so far."""

    operation: str
    a: int
    b: int
    number: float


class RandomSentence(NamedTuple):
    """A sentence of a random graph: its length, and the program that it runs."""

    length: int
    program: tuple[Instruction, ...]


class SentenceProgram:
    """One sentence of a random graph while it is built.

    Args:
        sentence:   what is built.
        generator:  draws inputs, ids and further operands.
        shared:     nodes of all sentences.
        parameters: by name, of the shapes in `PARAMETERS`.
        functions:  of a matrix, which instructions may call.
        inline:     cells are called as the functions they were made of.

    Attributes:
        nodes: what later instructions may read.
        pairs: states of two parts that cells gave, by width.
        kept:  nodes whose values and gradients are compared.
    """

    def __init__(
        self,
        sentence: RandomSentence,
        graph: Owner,
        generator: np.random.Generator,
        shared: Sequence[Node],
        parameters: Mapping[str, Parameter],
        functions: Sequence[Function] = (),
        inline: bool = False,
    ) -> None:
        self.parameters = parameters
        self.graph = graph
        self.sentence = sentence
        self.generator = generator
        self.functions = functions
        self.inline = inline
        self.products = 0
        self.nodes = list(shared)
        self.pairs: dict[int, list[Any]] = {}
        self.kept: list[Node] = []
        length = sentence.length
        for shape in ((length, 2), (length, 3), (2,), ()):
            node = F.input(graph, self.generator.standard_normal(shape))
            self.nodes.append(node)
            if self.generator.random() < 0.5:
                self.kept.append(node.keep())
        ids = self.generator.integers(0, VOCABULARY, length)
        self.nodes.append(F.lookup(graph, self.parameters["table"], ids))

    def run(self, operations: Mapping[str, ProgramOperation], reads: int = 0) -> list[Node]:
        """Build every node; return the sentence's losses.

        Args:
            reads: a value is read after every so many nodes; 0: never.
        """
        for count, instruction in enumerate(self.sentence.program, 1):
            self.nodes.append(self._apply(operations, instruction))
            if self.generator.random() < 0.1:
                self.kept.append(self.nodes[-1].keep())
            if reads and count % reads == 0:
                _ = self.nodes[int(self.generator.integers(len(self.nodes)))].value
        losses = [node for node in self.nodes if node.shape == () and node.inputs]
        # Some nodes stay without a reader, as in graphs that people write.
        probed = [node for node in self.nodes if self.generator.random() < 0.5]
        probed = probed or self.nodes[-1:]
        weights = [self.generator.standard_normal(node.shape) for node in probed]
        return [*losses, probe(probed, weights)]

    def _apply(self, operations: Mapping[str, ProgramOperation], instruction: Instruction) -> Node:
        a = self.nodes[instruction.a % len(self.nodes)]
        if instruction.operation == "call":
            matrix = self.choose(instruction.a, [n for n in self.nodes if n.ndim == 2])
            return self.functions[instruction.b % len(self.functions)](matrix)
        return operations[instruction.operation](self, a, instruction)

    def choose(self, number: int, candidates: Sequence[Node]) -> Node:
        """The candidate of a number; numbers may be larger than there are candidates."""
        return candidates[number % len(candidates)]

    # Operations, each total: it takes any `a`, and finds operands that fit -----------------------

    def same(self, a: Node, i: Instruction) -> Node:
        """A node of the shape of `a`; `a` itself among them."""
        return self.choose(i.b, [n for n in self.nodes if n.shape == a.shape])

    def multiply(self, a: Node, i: Instruction) -> Node:
        self.products += 1
        b = self.same(a, i)
        return a * b if self.products <= MOST_PRODUCTS else a + b

    def sum_product(self, a: Node, i: Instruction) -> Node:
        total = F.sum(a, dim=0) if a.ndim == 2 else F.sum([F.sum(a), F.mean(a), F.sum(a)])
        self.nodes.append(total)
        product = self.multiply(total, i)
        return self.linear(product, i) if a.ndim == 2 else product

    def divide(self, a: Node, i: Instruction) -> Node:
        return a / (F.sigmoid(self.same(a, i)) + 0.5)

    def broadcast(self, a: Node, i: Instruction) -> Node:
        """The sum with what can be repeated to the shape of `a`: a vector, a column, a number."""
        shapes = {(), a.shape, a.shape[-1:], (*a.shape[:-1], 1)}
        if not a.shape:
            return a + a
        fits = [n for n in self.nodes if n.shape in shapes]
        return a - self.choose(i.b, fits)

    def linear(self, a: Node, i: Instruction) -> Node:
        if a.ndim == 0 or a.width not in WIDTHS:
            return F.tanh(a)
        out = WIDTHS[i.b % len(WIDTHS)]
        bias = self.parameters[f"bias{out}"] if i.b % 2 else None
        return F.linear(a, self.parameters[f"weight{a.width}{out}"], bias)

    def matmul(self, a: Node, i: Instruction) -> Node:
        if a.ndim == 0 or a.width not in WIDTHS:
            return -a
        weight = self.parameters[f"weight{WIDTHS[i.b % len(WIDTHS)]}{a.width}"]
        return a @ F.parameter(self.graph, weight)

    def concat(self, a: Node, i: Instruction) -> Node:
        if a.ndim == 0:
            return F.sigmoid(a)
        fits = [n for n in self.nodes if n.ndim == a.ndim and n.shape[:-1] == a.shape[:-1]]
        return F.concat([a, self.choose(i.b, fits), self.choose(i.a + i.b, fits)])

    def append(self, a: Node, i: Instruction) -> Node:
        if a.ndim == 0:
            return F.softplus(a)
        fits = [n for n in self.nodes if n.ndim == a.ndim and n.width == a.width]
        return F.concat([self.choose(i.b, fits), a], dim=0)

    def cross_entropy(self, a: Node, i: Instruction) -> Node:
        if a.ndim == 0 or not a.width:
            return F.silu(a)
        targets = self.generator.integers(0, a.width, a.rows)
        targets[self.generator.random(a.rows) < 0.2] = -100
        reduction = "sum" if i.b % 2 else "mean"
        return F.cross_entropy(a, targets, label_smoothing=0.1 * (i.b % 3), reduction=reduction)


ProgramOperation = Callable[[SentenceProgram, Node, Instruction], Node]
"""Takes any node, and finds what else it needs."""

NODE_OPERATIONS: dict[str, ProgramOperation] = {
    "tanh": lambda program, a, i: F.tanh(a),
    "sigmoid": lambda program, a, i: F.sigmoid(a),
    "negative": lambda program, a, i: -a,
    "detach": lambda program, a, i: F.detach(a),
    "scale": lambda program, a, i: a * i.number,
    "shift": lambda program, a, i: a + i.number,
    "add": lambda program, a, i: a + program.same(a, i),
    "subtract": lambda program, a, i: program.same(a, i) - a,
    "multiply": SentenceProgram.multiply,
    "sum_product": SentenceProgram.sum_product,
    "divide": SentenceProgram.divide,
    "broadcast": SentenceProgram.broadcast,
    "linear": SentenceProgram.linear,
    "matmul": SentenceProgram.matmul,
    "concat": SentenceProgram.concat,
    "append": SentenceProgram.append,
    "cross_entropy": SentenceProgram.cross_entropy,
}
"""On nodes of any shape."""
