"""`RandomGraph`: a graph of several sentences written as data, to be built again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dynbatch import nodes as F
from dynbatch.nodes.base import Node, Owner
from dynbatch.parameter import Parameter
from dynbatch.testing.probe import probe
from dynbatch.testing.random_cells import CELL_OPERATIONS, WIDTHS
from dynbatch.testing.random_functions import FUNCTION_OPERATIONS

Function = Callable[[Node], Node]

VOCABULARY = 5
TAILS = ("mean", "sum", "square")

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
        tail:      how the losses become one: "mean", "sum", or "square" of the mean.
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

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        self.parameters: dict[str, Parameter] = {}
        for name, shape in PARAMETERS.items():
            parameter = Parameter(generator.standard_normal(shape), name)
            parameter.frozen = name in self.frozen
            self.parameters[name] = parameter

    def __len__(self) -> int:
        """How many sentences there are."""
        return max(len(self.sentences), self.count)

    def build(self, graph: Owner) -> Built:
        """Make the nodes in `graph`, whose dtype must be float64."""
        shared = [F.parameter(graph, self.parameters["vector"]), F.input(graph, [0.5, -1.0])]
        built = Built(shared[0], [], {"shared input": shared[1].keep()}, list(shared))
        for number in range(len(self)) if self.numbers is None else self.numbers:
            program = SentenceProgram(self, graph, number, shared)
            built.losses.extend(program.run())
            built.nodes.extend(program.nodes)
            for place, node in enumerate(program.kept):
                built.kept[f"sentence {number}, kept node {place} {node.shape}"] = node
        total = F.sum(built.losses) if self.tail == "sum" else F.mean(built.losses)
        return built._replace(loss=total * total if self.tail == "square" else total)


class SentenceProgram:
    """One sentence of a random graph while it is built.

    Attributes:
        nodes: what later instructions may read.
        pairs: states of two parts that cells gave, by width.
        kept:  nodes whose values and gradients are compared.
    """

    def __init__(self, plan: RandomGraph, graph: Owner, number: int, shared: list[Node]) -> None:
        self.plan = plan
        self.parameters = plan.parameters
        self.graph = graph
        self.sentence = plan.sentences[number % len(plan.sentences)]
        self.generator = np.random.default_rng((plan.seed, number))
        self.products = 0
        self.nodes = list(shared)
        self.pairs: dict[int, list[Any]] = {}
        self.kept: list[Node] = []
        length = self.sentence.length
        for shape in ((length, 2), (length, 3), (2,), ()):
            node = F.input(graph, self.generator.standard_normal(shape))
            self.nodes.append(node)
            if self.generator.random() < 0.5:
                self.kept.append(node.keep())
        ids = self.generator.integers(0, VOCABULARY, length)
        self.nodes.append(F.lookup(graph, self.parameters["table"], ids))

    def run(self) -> list[Node]:
        """Build every node; return the sentence's losses."""
        for count, instruction in enumerate(self.sentence.program, 1):
            self.nodes.append(self._apply(instruction))
            if self.generator.random() < 0.1:
                self.kept.append(self.nodes[-1].keep())
            if self.plan.reads and count % self.plan.reads == 0:
                _ = self.nodes[int(self.generator.integers(len(self.nodes)))].value
        losses = [node for node in self.nodes if node.shape == () and node.inputs]
        # Some nodes stay without a reader, as in graphs that people write.
        probed = [node for node in self.nodes if self.generator.random() < 0.5]
        probed = probed or self.nodes[-1:]
        weights = [self.generator.standard_normal(node.shape) for node in probed]
        return [*losses, probe(probed, weights)]

    def _apply(self, instruction: Instruction) -> Node:
        a = self.nodes[instruction.a % len(self.nodes)]
        if instruction.operation == "call":
            matrix = self.choose(instruction.a, [n for n in self.nodes if n.ndim == 2])
            functions = self.plan.functions
            return functions[instruction.b % len(functions)](matrix)
        return OPERATIONS[instruction.operation](self, a, instruction)

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
        """A product that reads sums, of tokens or of several numbers."""
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


OPERATIONS: dict[str, Callable[[SentenceProgram, Node, Instruction], Node]] = {
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
    **FUNCTION_OPERATIONS,
    **CELL_OPERATIONS,
}
