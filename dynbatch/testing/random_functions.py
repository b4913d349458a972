"""Operations of random programs on whole sentences: softmax, attention, scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynbatch import nodes as F
from dynbatch.cells.cell import cell
from dynbatch.cells.scan.scan import scan
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.testing.random_program import WIDTHS, Instruction, ProgramOperation, SentenceProgram


@cell
def elman(x: Node, h: Node, p: Mapping[str, Parameter]) -> tuple[Node, Node]:
    """A recurrent step of width 2."""
    h = F.tanh(F.linear(x, p[f"weight{x.width}2"]) + F.linear(h, p["gate22"]))
    return h, h


@cell
def running_mean(x: Node, h: Node, params: None) -> tuple[Node, Node]:
    h = 0.5 * h + F.tanh(x) * 0.5
    return h * x, h


@cell
def attending(
    x: Node, state: tuple[Node, Node], params: None, memory: Node
) -> tuple[Node, tuple[Node, Node]]:
    h, c = state
    h = F.tanh(x + F.attention(h, memory))
    c = F.sigmoid(x) * c + h
    return F.concat([h * x, c]), (h, c)


@cell
def beside(tokens: tuple[Node, Node], h: Node, p: Parameter, memory: Node) -> tuple[Node, Node]:
    """A token of each of two sentences, a single parameter, and the rows of a memory."""
    x, z = tokens
    h = F.tanh(F.linear(z, p) + x * h) + F.sum(memory, dim=0) / (1 + memory.rows)
    return F.concat([h, z]), h


def side_by_side(x: Node, program: SentenceProgram) -> Node:
    """A scan of two sentences of unlike widths, whose cell follows the rows of its memory."""
    if x.width not in WIDTHS:
        return -x
    other = F.concat([F.tanh(x), x * 0.5])[:, : 1 + x.width % 2]
    weight = program.parameters[f"weight{other.width}{x.width}"]
    last: Node
    ys, last = scan(beside, (x, other), init=x.width, params=weight, memory=F.sigmoid(x))
    return ys[:, : x.width] * last


def recurrent(x: Node, program: SentenceProgram) -> Node:
    """A scan from a given state; its outputs and its last state are both read."""
    if x.width not in WIDTHS:
        return -x
    initial = F.sigmoid(F.input(x.graph, [0.0, 1.0]))
    ys, last = scan(elman, x, init=initial, params=program.parameters)
    return F.concat([ys, F.reverse(ys) * last])


def averaged(x: Node, program: SentenceProgram) -> Node:
    """A scan whose program has no parameters."""
    last: Node
    ys, last = scan(running_mean, x, init=F.constant(x.graph, 0.1, (x.width,)))
    return ys * last


def backwards(x: Node, program: SentenceProgram) -> Node:
    """A scan from the last token to the first, one part of its state given."""
    init = (F.constant(x.graph, 0.2, (x.width,)), x.width)
    memory = F.tanh(F.reverse(x))
    ys, (h, c) = scan(attending, x, init=init, memory=memory, reverse=True)
    return ys * F.concat([c, h])


def halves_swapped(x: Node, program: SentenceProgram) -> Node:
    """The second half of the tokens, then the first."""
    half = x.rows // 2
    first, second = F.split(x, [half, x.rows - half], dim=0)
    return F.concat([second, first], dim=0)


def scores(x: Node, program: SentenceProgram) -> Node:
    """Products of each row with each of another matrix: a width that is a length, perhaps 0."""
    others = [node for node in program.nodes if node.ndim == 2 and node.width == x.width]
    return F.tanh(x @ F.transpose(others[-1]))


def attended(x: Node, program: SentenceProgram) -> Node:
    """Attention written out, its scores normalised the other way as well."""
    products = scores(x, program)
    peaked = F.softmax(products + F.log_softmax(products, dim=0) * 0.1)
    return F.transpose(peaked) @ x


def balanced(x: Node, program: SentenceProgram) -> Node:
    """A column, a row and a number repeated over a matrix of any width."""
    return x * F.sum(x, dim=-1) * 0.1 - F.mean(x, dim=0) + F.mean(x)


FUNCTIONS: dict[str, Callable[[Node, SentenceProgram], Node]] = {
    "softmax": lambda x, program: F.softmax(x),
    "log_softmax": lambda x, program: F.log_softmax(x),
    "layer_norm": lambda x, program: F.layer_norm(x),
    "rms_norm": lambda x, program: F.rms_norm(x),
    "rotary": lambda x, program: F.rotary(x, rotary_dim=2, offset=x.rows) if x.width > 1 else x,
    "sinusoidal": lambda x, program: x + F.sinusoidal(x),
    "swiglu": lambda x, program: F.swiglu(x, F.reverse(x)),
    "reverse": lambda x, program: F.reverse(x),
    "softmax over tokens": lambda x, program: F.softmax(x, dim=0),
    "dropout": lambda x, program: F.dropout(x, 0.3),
    "attention": lambda x, program: F.attention(x, x, x),
    "sum": lambda x, program: F.sum(x, dim=0),
    "mean": lambda x, program: F.mean(x, dim=-1),
    "logsumexp": lambda x, program: F.logsumexp(x, dim=-1),
    "max": lambda x, program: F.max(x, dim=-1) + F.min(x, dim=-1),
    "stack": lambda x, program: F.stack([F.sum(x, dim=0), F.sum(x * x, dim=0)]),
    "halves swapped": halves_swapped,
    "transpose": lambda x, program: F.transpose(x),
    "scores": scores,
    "own attention": attended,
    "balanced": balanced,
    "argmax": lambda x, program: F.argmax(x, dim=0) if x.rows else F.sum(x, dim=0),
    "gather_rows": lambda x, program: F.gather_rows(x, [0, x.rows - 1, 0] if x.rows else []),
    "segments": lambda x, program: F.segment_mean(x, [x.rows - x.rows // 2, 0, x.rows // 2]),
    "scan": averaged,
    "scan from a state": recurrent,
    "scan backwards": backwards,
    "scan side by side": side_by_side,
}


NEED_FEATURES = (
    "layer_norm", "rms_norm", "rotary", "sinusoidal", "attention", "logsumexp", "max",
    "gather_rows", "segments", "scan", "scan from a state", "scan backwards", "scan side by side",
)  # fmt: skip
"""Functions that a matrix without features is not given to."""


def _of_matrix(
    name: str,
    function: Callable[[Node, SentenceProgram], Node],
) -> ProgramOperation:
    def operation(program: SentenceProgram, a: Node, i: Instruction) -> Node:
        least = 1 if name in NEED_FEATURES else 0
        matrices = [node for node in program.nodes if node.ndim == 2 and node.width >= least]
        if a.width < least:
            return -a
        return function(a if a.ndim == 2 else program.choose(i.b, matrices), program)

    return operation


FUNCTION_OPERATIONS = {name: _of_matrix(name, function) for name, function in FUNCTIONS.items()}
"""Each takes any node, and chooses a matrix where it is none."""
