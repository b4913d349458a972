"""Cells that random programs apply step by step: along chains, up trees, over lattices.

Their states come as results of earlier calls, whole; as ordinary nodes; and mixed with nodes of
whole sentences, which stand before them (rows of a matrix) and behind (a stack of states).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from dynbatch import nodes as F
from dynbatch.cells import Cell, cell
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.testing.random_program import (
    STATE_WIDTHS,
    WIDTHS,
    Instruction,
    ProgramOperation,
    SentenceProgram,
)

T = TypeVar("T")
Weights = Mapping[str, Parameter]
State = Any
"""A node, a pair of nodes, or a call that returned one."""


def _linear(p: Weights, prefix: str, x: Node, width: int, bias: bool = False) -> Node:
    """A linear map of `x` to a width, by a weight whose name has this prefix."""
    return F.linear(x, p[f"{prefix}{x.width}{width}"], p[f"bias{width}"] if bias else None)


@cell
def elman(x: Node, h: Node, p: Weights) -> Node:
    """One output, of a token and a state."""
    return F.tanh(_linear(p, "weight", x, h.width, bias=True) + _linear(p, "gate", h, h.width))


@cell
def lstm(x: Node, state: tuple[Node, Node], p: Weights) -> tuple[Node, tuple[Node, Node]]:
    """A cell in the form of `scan`: it returns an output, and a state of two parts."""
    h, c = state
    f = F.sigmoid(_linear(p, "weight", x, h.width) + _linear(p, "weight", h, h.width))
    g = F.tanh(_linear(p, "gate", x, h.width, bias=True) + _linear(p, "gate", h, h.width))
    c = f * c + (1 - f) * g
    h = F.tanh(c) * f
    return h, (h, c)


@cell
def compose(left: Node, right: Node, p: Weights) -> Node:
    """A node of a recursive network: one output, of two states."""
    mixed = F.concat([left[1:], right[:1]])
    return F.tanh(_linear(p, "weight", mixed, left.width) + _linear(p, "gate", right, left.width))


@cell
def tree_lstm(left: tuple[Node, Node], right: tuple[Node, Node], p: Weights) -> tuple[Node, Node]:
    """A node of a binary Tree-LSTM."""
    (h_l, c_l), (h_r, c_r) = left, right
    width = h_l.width
    f_l = F.sigmoid(_linear(p, "weight", h_l, width, bias=True) + _linear(p, "gate", h_r, width))
    f_r = F.sigmoid(_linear(p, "weight", h_r, width, bias=True) + _linear(p, "gate", h_l, width))
    c = f_l * c_l + f_r * c_r
    return F.tanh(c) * f_r, F.tanh(c + 0.5)


@cell
def open_pair(h: Node, x: Node, p: Weights) -> tuple[Node, Node]:
    """A pair of one state, for `close_pair`: the two read each other's results."""
    return F.tanh(_linear(p, "gate", h, h.width) + _linear(p, "weight", x, h.width)), F.sigmoid(h)


@cell
def close_pair(pair: tuple[Node, Node], x: Node, p: Weights) -> Node:
    first, second = pair
    return F.tanh(first * second + _linear(p, "gate", x, first.width))


@cell
def merge(a: Node, b: Node, c: Node, params: None) -> Node:
    """Elementwise, of three states that may be one."""
    gate = F.sigmoid(a)
    return gate * b + (1 - gate) * F.tanh(c)


@cell
def swap(a: Node, b: Node, params: None) -> tuple[Node, Node]:
    return b, a


@cell
def twice(a: Node, b: Node, p: Weights) -> tuple[Node, Node]:
    """A value as both outputs, and a parameter as a value."""
    if a.width == p["vector"].size:
        a = a * p["vector"]
    y = F.softmax(a + F.tanh(b))
    return y, y


@cell
def attend(x: Node, h: Node, p: Weights, memory: Node) -> Node:
    """A state that reads a whole sentence."""
    return F.tanh(F.attention(h, memory) + _linear(p, "weight", x, h.width))


@cell
def scored(h: Node, p: Weights) -> tuple[Node, Node]:
    """A state and a number."""
    h = F.tanh(_linear(p, "gate", h, h.width, bias=True))
    return h, F.sum(h * F.sigmoid(h))


@cell
def spread(memory: Node, h: Node, p: Weights) -> Node:
    """A matrix, of a matrix and a state."""
    return F.tanh(_linear(p, "weight", memory, h.width) + h)


@cell
def projected(x: Node, h: Node, weight: Parameter) -> Node:
    return F.tanh(F.linear(h, weight) * F.sum(x))


class CellForm(NamedTuple):
    """A cell, what it takes and what it gives.

    takes: of each argument: "x", a vector of any width; "h", a state of one part; "hc", of two;
           "xs", a matrix. `attend` takes one behind the parameters.
    gives: how its result is unpacked: into its values, and the state that it is or holds.
    """

    cell: Cell[Any]
    takes: tuple[str, ...]
    gives: Callable[[State], tuple[Sequence[Node], State]]
    has_parameters: bool = True


def _one(result: State) -> tuple[Sequence[Node], State]:
    return (result,), result


def _two(result: State) -> tuple[Sequence[Node], State]:
    h, c = result
    return (h, c), result


def _aliased(result: State) -> tuple[Sequence[Node], State]:
    """A pair of one value twice, or of arguments.

    Only for the function are these one node, with one gradient; so they are read, not compared.
    """
    h, c = result
    return (-h, -c), result


def _first(result: State) -> tuple[Sequence[Node], State]:
    h, score = result
    return (h, score), h


def _nested(result: State) -> tuple[Sequence[Node], State]:
    y, state = result  # y is h: see `_aliased`
    h, c = state
    return (h, c, -y), state


ELMAN = CellForm(elman, ("x", "h"), _one)
LSTM = CellForm(lstm, ("x", "hc"), _nested)
COMPOSE = CellForm(compose, ("h", "h"), _one)
TREE_LSTM = CellForm(tree_lstm, ("hc", "hc"), _two)
OPEN_PAIR = CellForm(open_pair, ("h", "x"), _two)
CLOSE_PAIR = CellForm(close_pair, ("hc", "x"), _one)
MERGE = CellForm(merge, ("h", "h", "h"), _one, has_parameters=False)
SWAP = CellForm(swap, ("h", "h"), _aliased, has_parameters=False)
TWICE = CellForm(twice, ("h", "h"), _aliased)
ATTEND = CellForm(attend, ("x", "h"), _one)
SCORED = CellForm(scored, ("h",), _first)
SPREAD = CellForm(spread, ("xs", "h"), _one)
PROJECTED = CellForm(projected, ("x", "h"), _one)
CELL_FORMS = (
    ELMAN, LSTM, COMPOSE, TREE_LSTM, OPEN_PAIR, CLOSE_PAIR, MERGE, SWAP, TWICE, ATTEND, SCORED,
    SPREAD,
)  # fmt: skip


class Steps:
    """Applies cells for one instruction of a program, on states of one width.

    Attributes:
        width:  of the states.
        tokens: vectors, the rows of a matrix.
        pairs:  states of two parts that are results of calls, or parts of such.
    """

    def __init__(self, program: SentenceProgram, a: Node, i: Instruction) -> None:
        self.program = program
        self.width = a.width if a.width in STATE_WIDTHS else STATE_WIDTHS[i.b % 2]
        self.pairs: list[State] = program.pairs.setdefault(self.width, [])
        self.matrix = a if a.ndim == 2 else self.argument("xs")
        self.tokens = [self.matrix[k] for k in range(self.matrix.rows)]
        program.nodes += self.tokens

    def any(self, candidates: Sequence[T]) -> T:
        """One of them at random."""
        return candidates[int(self.program.generator.integers(len(candidates)))]

    def argument(self, what: str) -> State:
        """Any value for such an argument; a pair is often made of ordinary nodes."""
        nodes, ndim = self.program.nodes, 2 if what == "xs" else 1
        if what in ("x", "xs"):
            return self.any([n for n in nodes if n.ndim == ndim and n.width in WIDTHS])
        fits = [n for n in nodes if n.shape == (self.width,)]
        if what == "h":
            return self.any(fits)
        return self.any([*self.pairs, *[(self.any(fits), self.any(fits)) for _ in range(2)]])

    def call(self, form: CellForm, *arguments: State) -> State:
        """Apply a cell; the state that its result is or holds."""
        program = self.program
        memory = []
        if form is ATTEND:
            fits = [n for n in program.nodes if n.ndim == 2 and n.width == self.width]
            memory = [self.any([*fits, F.stack([self.argument("h")])])]
        function = form.cell.function if program.inline else form.cell
        params: Weights | Parameter | None = program.parameters if form.has_parameters else None
        if form is PROJECTED:
            params = program.parameters[f"gate{self.width}{self.width}"]
        values, state = form.gives(function(*arguments, params, *memory))
        program.nodes += values
        if len(values) > 1 and state is not values[0]:
            self.pairs.append(state)
        return state

    def behind(self, states: Sequence[State]) -> Node:
        """A node of the whole sentence that reads all states: their first parts as a matrix."""
        pairs = {id(pair) for pair in self.pairs}
        firsts = []
        for state in states:
            if id(state) in pairs:
                state, _ = state
            firsts.append(state)
        return F.stack(firsts) if firsts else F.tanh(self.matrix)


def apply(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """One call of any cell, on any values."""
    steps = Steps(program, a, i)
    form = CELL_FORMS[i.a % len(CELL_FORMS)]
    steps.call(form, *[steps.argument(what) for what in form.takes])
    return program.nodes.pop()


def chain(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """A recurrent network along the rows of a matrix, as a loop of calls."""
    steps = Steps(program, a, i)
    form = (ELMAN, LSTM, ATTEND)[i.a % 3]
    state, states = steps.argument(form.takes[1]), []
    for token in steps.tokens:
        state = steps.call(form, token if token.width in WIDTHS else steps.argument("x"), state)
        states.append(state)
    return steps.behind(states)


def tree(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """A binary tree of any form; its leaves are rows of a matrix, and earlier states."""
    steps = Steps(program, a, i)
    form = (COMPOSE, TREE_LSTM)[i.a % 2]
    leaves = [token for token in steps.tokens if token.width == steps.width]
    states = [leaf if form is COMPOSE else (leaf, F.tanh(leaf)) for leaf in leaves]
    states += [steps.argument(form.takes[0]) for _ in range(1 + i.b % 3)]
    inner = []
    while len(states) > 1:
        position = int(program.generator.integers(len(states) - 1))
        states[position : position + 2] = [steps.call(form, *states[position : position + 2])]
        inner.append(states[position])
    return steps.behind(inner)


def lattice(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """A directed acyclic graph: states are read by several calls, and twice by one call."""
    steps = Steps(program, a, i)
    forms = (MERGE, COMPOSE, ELMAN)
    states = [steps.argument("h"), steps.argument("h")]
    for number in range(2 + i.b % 4):
        form = forms[(i.a + number * (i.b % 2)) % len(forms)]
        states.append(steps.call(form, *[steps.any(states[-3:]) for _ in form.takes]))
    return steps.behind(states)


def mutual(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """Two cells that read each other's results, in turn."""
    steps = Steps(program, a, i)
    states = [steps.argument("h")]
    for _ in range(1 + i.a % 3):
        pair = steps.call(OPEN_PAIR, states[-1], steps.argument("x"))
        states.append(steps.call(CLOSE_PAIR, pair, steps.argument("x")))
    return steps.behind(states)


def begun(program: SentenceProgram, a: Node, i: Instruction) -> Node:
    """A chain whose first state is a parameter, of cells that take all parameters, or only one."""
    steps = Steps(program, a, i)
    state: State = program.parameters["vector"]
    steps.width = state.size
    if program.inline:
        state = F.parameter(a.graph, state)
    states = []
    for number, token in enumerate(steps.tokens):
        x = token if token.width in WIDTHS else steps.argument("x")
        state = steps.call((ELMAN, PROJECTED)[(i.a + number) % 2], x, state)
        states.append(state)
    return steps.behind(states)


CELL_OPERATIONS: dict[str, ProgramOperation] = {
    "apply": apply,
    "chain": chain,
    "tree": tree,
    "lattice": lattice,
    "mutual": mutual,
    "begun": begun,
}
"""Operations of random programs, each total: it takes any node, and finds what else it needs."""
