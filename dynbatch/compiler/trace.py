"""Tracing: a cell runs once on placeholders, and what it built is split into three parts.

before  operators that depend on the tokens only: run once, over all tokens of all sentences, as
        ordinary nodes ahead of the scan; or on the memory only: once for each sentence
loop    operators that the next state depends on: the recurrence itself
after   operators that feed the output only: ordinary nodes behind the scan
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch.compiler.recorder import Path, is_leaf, recorded
from dynbatch.errors import DynbatchError, GraphError, ShapeError
from dynbatch.nodes.dropout import InvertedDropout
from dynbatch.nodes.node import Node, Shape, ancestors
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Array
from dynbatch.parameter_habits import NoPartsError


class Placeholder(Operation):
    """A value that a cell is given: a token, a part of the state, or a memory."""

    __slots__ = ("given", "place", "role")
    given: Shape
    role: str
    place: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        return self.given

    def signature(self) -> int:
        return -1

    def label(self) -> str:
        """What it stands for, since a cell's placeholders are no nodes of the user's."""
        if self.role == "token":
            return f"token {self.place}" if self.place else "the token"
        return f"{self.role} {self.place}"


class TraceGraph:
    """Owns the nodes of one trace. Nothing runs in it."""

    uid = -1
    is_trace = True
    form_ids = None

    def __init__(self, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nodes: list[Operation] = []
        self.programs: dict[Any, Any] = {}

    def add(self, node: Node) -> int:
        assert isinstance(node, Operation)
        self.nodes.append(node)
        return len(self.nodes) - 1

    add_light = add

    def absorb(self, node: Node, reader: Node) -> None:
        raise GraphError("a loss cannot be part of a cell; compute it from the scan's outputs.")

    def value(self, node: Node) -> Array:
        raise GraphError(
            f"{node.label()}: a cell is traced once, before there are values to read.\n"
            "  fix:  write the cell with operations only; decide outside it"
        )

    gradient = device_value = device_gradient = value

    def backward(
        self, loss: Node, memory_limit: int | str | None = None, gradient: Any = None
    ) -> None:
        raise GraphError(
            f"{loss.label()}: backward inside a cell, which is traced once and has no values.\n"
            "  fix:  graph.backward(loss) of a loss made from what the cell returned"
        )

    def keep(self, node: Node) -> None:
        raise GraphError("keep() inside a cell: keep the scan's outputs instead.")

    def stream(self, node: Node) -> int:
        return 0

    def sentence(self, node: Node) -> int | None:
        return None


@dataclass
class Trace:
    """A cell's operators and where its inputs and outputs are among them.

    tokens:     one, or one of each of several sentences side by side.
    fixed_rows: whether it holds only for memories of as many rows as it was traced with.
    """

    nodes: list[Operation]
    tokens: list[Node]
    states: list[Node]
    memories: list[Node]
    output: Node
    next_states: list[Node]
    reads: dict[Path, Any]
    fixed_rows: bool = False


def trace_cell(
    function: Callable[..., Any],
    tokens: int | tuple[int, ...],
    states: Sequence[int],
    single: bool,
    memories: Sequence[Shape],
    params: Any,
    dtype: Any,
) -> Trace:
    """Run `function` once on placeholders.

    Args:
        tokens: features of a token; a tuple where a cell is given several side by side.

    Raises:
        ShapeError: the cell does not return (output, next state) with the state's shapes, or makes
            a value that is not a vector.
    """
    graph = TraceGraph(dtype)

    def given(role: str, place: int, shape: Shape) -> Node:
        return Placeholder(graph=graph, role=role, place=place, given=shape)

    widths = tokens if isinstance(tokens, tuple) else (tokens,)
    token_nodes = [given("token", k, (width,)) for k, width in enumerate(widths)]
    x: Any = tuple(token_nodes) if isinstance(tokens, tuple) else token_nodes[0]
    state_nodes = [given("state", k, (width,)) for k, width in enumerate(states)]
    memory_nodes = [given("memory", k, shape) for k, shape in enumerate(memories)]
    given_params, reads = recorded(params)
    state: Any = state_nodes[0] if single else tuple(state_nodes)
    memory: list[Any] = []
    if memory_nodes:
        memory = [memory_nodes[0] if len(memory_nodes) == 1 else tuple(memory_nodes)]
    name = getattr(function, "__name__", "cell")
    returned = run_traced(function, [x, state, given_params, *memory], params)
    output, following = _returned(name, returned, state_nodes, single)
    require_inside(name, [output, *following], graph)
    return Trace(graph.nodes, token_nodes, state_nodes, memory_nodes, output, following, reads)


def run_traced(function: Callable[..., Any], arguments: Sequence[Any], params: Any) -> Any:
    """What a cell returns; names the parameters where it missed something in them."""
    try:
        return function(*arguments)
    except (AttributeError, TypeError) as error:
        kind = type(params).__name__
        is_told = isinstance(error, DynbatchError) and not isinstance(error, NoPartsError)
        if is_told or not is_leaf(params) or kind not in str(error):
            raise
        given = "none were" if params is None else f"one {kind} was"
        raise GraphError.at_caller(
            f"cell {getattr(function, '__name__', 'cell')!r} reads its parameters, and {given} "
            f"given ({error}).\n"
            "  rule: what a cell gets as its parameters comes from the caller\n"
            "  fix:  db.scan(cell, xs, init, params), with a module, a namespace, a dict or a list"
        ) from error


def require_inside(name: str, returned: Sequence[Node], graph: TraceGraph) -> None:
    """Raise `GraphError` if a cell returned a node that was made outside it."""
    for node in returned:
        if node.graph is not graph:
            raise GraphError.at_caller(
                f"cell {name!r} returned {node!r}, which was made outside it.\n"
                "  rule: a cell runs once for many sentences; it reads its arguments only\n"
                "  fix:  give it what it reads of the sentence as an argument; db.scan has `memory`"
            )


def _returned(
    name: str, returned: Any, states: Sequence[Node], single: bool
) -> tuple[Node, list[Node]]:
    good = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Node)
    following: Any = returned[1] if good else None
    if good and single and isinstance(following, Node):
        following = (following,)
    good = good and isinstance(following, tuple) and len(following) == len(states)
    if not good or not all([isinstance(part, Node) for part in following]):
        raise ShapeError.at_caller(
            f"cell {name!r} must return (output, next state); the state has {len(states)} part(s)."
            f"\n  got:  {returned!r}\n"
            "  fix:  `return h, h`, or `return h, (h, c)` for a state of two parts"
        )
    for part, (before, after) in enumerate(zip(states, following, strict=True)):
        if before.shape != after.shape:
            raise _another_width(name, part, states, following)
    return returned[0], list(following)


def _another_width(
    name: str, part: int, before: Sequence[Node], after: Sequence[Node]
) -> ShapeError:
    which = "`init`" if len(before) == 1 else f"part {part} of `init`"
    entered, leaves = before[part], after[part]
    if leaves.ndim == 1:
        widths = ", ".join([str(node.width) for node in after])
        right = widths if len(before) == 1 else f"({widths})"
        fix = f"init={right} if the state is so wide, else project it to {entered.width} features"
        left = f"width {leaves.width}"
    else:
        left = f"shape {leaves.shape}"
        fix = f"return a vector of {entered.width} features as the next state"
    return ShapeError.at_caller(
        f"cell {name!r}: {which} has width {entered.width}, the cell's next state {left}.\n"
        f"  rule: a state keeps its width from step to step\n  fix:  {fix}"
    )


@dataclass
class Split:
    """The three parts of a trace, each in creation order.

    exports: values of the loop, or of the state, that the output or `after` read. Where they need
             none, the state all the same: a scan has a value, if only for its last state's sake.
    kinds:   by index: "token" and "memory" (before), "loop", "after"; placeholders: their role.
             What reads neither token nor state is "memory", parameters and constants too: it is
             made once a sentence.
    """

    before: list[Operation]
    loop: list[Operation]
    after: list[Operation]
    exports: list[Node]
    kinds: dict[int, str]


def split(trace: Trace) -> Split:
    """Sort the operators of a trace into before, loop and after; leave out what nothing reads."""
    needed = ancestors([trace.output, *trace.next_states])
    for_state = ancestors(trace.next_states)
    order = [n for n in trace.nodes if n.index in needed and not isinstance(n, Placeholder)]
    kinds = {n.index: n.role for n in trace.nodes if isinstance(n, Placeholder)}
    readers: dict[int, list[int]] = {}
    for node in order:
        for x in node.inputs:
            readers.setdefault(x.index, []).append(node.index)
        kinds[node.index] = _kind(node, kinds)
    for node in reversed(order):
        free = kinds[node.index] == "loop" and node.index not in for_state
        if free and node.is_rowwise():
            if all(kinds[reader] == "after" for reader in readers.get(node.index, [])):
                kinds[node.index] = "after"
    parts = {kind: [n for n in order if kinds[n.index] == kind] for kind in ("loop", "after")}
    of_token = [n for n in order if kinds[n.index] == "token"]
    for value in [*of_token, *parts["loop"], *parts["after"], trace.output]:
        require_vector(value)
    wanted = [trace.output, *[x for n in parts["after"] for x in n.inputs]]
    exports = {x.index: x for x in wanted if kinds[x.index] in ("loop", "state")}
    exports = exports or {trace.states[0].index: trace.states[0]}
    before = [n for n in order if kinds[n.index] in ("token", "memory")]
    return Split(before, parts["loop"], parts["after"], list(exports.values()), kinds)


def _kind(node: Operation, kinds: dict[int, str]) -> str:
    """ "memory", "token" or "loop", from the kinds of what the node reads."""
    read = {kinds[x.index] for x in node.inputs}
    draws = isinstance(node, InvertedDropout) and node.ndim < 2  # anew at each token
    if read <= {"memory"} and not draws:
        return "memory"
    rows_of_memory = any(x.ndim == 2 and kinds[x.index] == "memory" for x in node.inputs)
    if not node.is_rowwise() or read & {"state", "loop"} or rows_of_memory:
        return "loop"
    return "token"


def require_vector(node: Node) -> None:
    """Raise `ShapeError` if a value of a step is a matrix."""
    if node.ndim > 1:
        raise ShapeError.at_caller(
            f"cell: {node.label()} is a matrix (rows, {node.width}), in a step of one sentence.\n"
            "  rule: what reads the token or the state is a vector, and so is the output\n"
            "  fix:  attend to a memory with F.attention, or sum it; the rest belongs outside"
        )
