"""Tracing: a cell runs once on placeholders, which record its operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dynbatch.arguments import refused
from dynbatch.backend import Array, DType
from dynbatch.caller import caller
from dynbatch.compiler.recorder import is_leaf, recorded
from dynbatch.compiler.traced import Reads
from dynbatch.errors import DynbatchError, GraphError, ShapeError, problem_of
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.node import Node, Owner, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.sources import parameter
from dynbatch.parameter_habits import NoPartsError, home


class Section(StrEnum):
    """The section of a trace that a node belongs to."""

    STATE = "state"
    TOKEN = "token"
    MEMORY = "memory"
    LOOP = "loop"
    AFTER = "after"
    ARGUMENT = "argument"  # of a call
    KNOWN_ARGUMENT = "known argument"  # of all calls, before the first one runs


class Placeholder(Operation):
    """A value that a cell is given, or a block: a token, a part of the state, an argument, ….

    role:   what it stands for; `number` is which of these.
    traced: its shape.
    """

    __slots__ = ("number", "role", "traced")
    role: Section
    number: int
    traced: Shape

    def infer_shape(self, *shapes: Shape) -> Shape:
        return self.traced

    def signature(self) -> int:
        return -1

    def label(self) -> str:
        """The argument's name: users never see placeholders."""
        if self.role == Section.TOKEN and not self.number:
            return "the token"
        return f"{self.role} {self.number}"


class TraceGraph:
    """Owns the nodes of one trace. Nothing runs in it."""

    uid = -1
    is_trace = True
    draws_arrays = False
    reads_short = False
    device = None
    form_ids = None
    names: Mapping[int, str] = MappingProxyType({})

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype: DType = np.dtype(dtype)
        self.nodes: list[Operation] = []
        self.lines: list[str] = []  # of the user's code, at which each of them was made
        self.converted_bytes = 0
        self.programs: dict[Any, Any] = {}
        self.signatures: dict[Any, int] = {}
        self.widths: dict[Any, tuple[int, int]] = {}

    def add(self, node: Node) -> int:
        assert isinstance(node, Operation)
        self.nodes.append(node)
        self.lines.append(caller())
        return len(self.nodes) - 1

    add_light = add

    def absorb(self, node: Node, reader: Node) -> None:
        if not isinstance(reader, LinearMap):  # whose windows a cell has as they are written
            raise GraphError("a loss cannot be part of a cell; compute it from the scan's outputs.")

    def value(self, node: Node) -> Array:
        raise GraphError.at_caller(
            f"{node.label()}: a cell is traced once, before there are values to read.\n"
            "  fix:  write the cell with operations only; decide outside it"
        )

    gradient = device_value = device_gradient = value

    def backward(
        self, loss: Node, memory_limit: int | str | None = None, gradient: object = None
    ) -> None:
        raise GraphError(
            f"{loss.label()}: backward inside a cell, which is traced once and has no values.\n"
            "  fix:  graph.backward(loss) of a loss made from what the cell returned"
        )

    def keep(self, node: Node) -> None:
        raise GraphError("keep() inside a cell: keep the scan's outputs instead.")

    def name(self, node: Node, name: str) -> None:
        raise GraphError.at_caller(
            f"named({name!r}) inside a cell.\n"
            "  rule: a cell is traced once, and its operators are not nodes of the graph\n"
            "  fix:  name what the cell returned"
        )

    def stream(self, node: Node) -> int:
        return 0

    def note_block(self, block: str, what: str) -> None:
        """A block inside a trace is a part of it."""

    def sentence(self, node: Node) -> int | None:
        return None


@dataclass
class Trace:
    """A cell's operators, inputs and outputs.

    tokens:     one, or one of each of several sentences side by side.
    open_rows:  indices of the nodes whose rows follow from a memory's, which may be any.
    fixed_rows: whether it holds only for memories of as many rows as it was traced with.
    """

    nodes: list[Operation]
    tokens: list[Node]
    states: list[Node]
    memories: list[Node]
    output: Node
    next_states: list[Node]
    reads: Reads
    fixed_rows: bool = False
    open_rows: frozenset[int] = frozenset()

    def returned(self) -> list[int]:
        """The indices of what the cell has returned."""
        return [node.index for node in (self.output, *self.next_states)]


def trace_cell(
    function: Callable[..., object],
    tokens: int | tuple[int, ...],
    states: Sequence[int | Shape],
    single: bool,
    memories: Sequence[Shape],
    params: object,
    dtype: DTypeLike,
) -> Trace:
    """Run `function` once on placeholders.

    Args:
        tokens: features of a token; a tuple where a cell is given several side by side.
        states: the width of each part of the state, or the shape of a matrix.

    Raises:
        ShapeError: the cell does not return (output, next state) with the state's shapes, or makes
            a value that a step cannot have.
        ArgumentError: it takes another number of arguments.
    """
    graph = TraceGraph(dtype)

    def placeholders(role: Section, shapes: Iterable[Shape]) -> list[Node]:
        return [
            Placeholder(graph=graph, role=role, number=number, traced=shape)
            for number, shape in enumerate(shapes)
        ]

    widths = tokens if isinstance(tokens, tuple) else (tokens,)
    token_nodes = placeholders(Section.TOKEN, [(width,) for width in widths])
    x = tuple(token_nodes) if isinstance(tokens, tuple) else token_nodes[0]
    state_nodes = placeholders(Section.STATE, [(s,) if isinstance(s, int) else s for s in states])
    memory_nodes = placeholders(Section.MEMORY, memories)
    given_params, reads = recorded(params)
    state = state_nodes[0] if single else tuple(state_nodes)
    memory = memory_nodes[:1] if len(memory_nodes) < 2 else [tuple(memory_nodes)]
    name = getattr(function, "__name__", "cell")
    _require_arguments(name, function, 3 + len(memory))
    returned = run_traced(function, [x, state, given_params, *memory], params, graph)
    output, following = _returned(name, returned, state_nodes, single)
    require_inside(name, [output, *following], graph)
    return Trace(graph.nodes, token_nodes, state_nodes, memory_nodes, output, following, reads)


def made_at(node: Node) -> str | None:
    """The line of the cell that made a traced node; None for a node of another graph."""
    graph = node.graph
    return graph.lines[node.index] if isinstance(graph, TraceGraph) else None


@contextmanager
def parameters_in(graph: Owner) -> Iterator[None]:
    """A context in which a parameter is a node of this graph, as beside a node it is."""
    token = home.set(partial(parameter, graph))
    try:
        yield
    finally:
        home.reset(token)


def run_traced(
    function: Callable[..., object], arguments: Sequence[object], params: object, graph: Owner
) -> object:
    """Call the cell on nodes of a graph; errors caused by its parameters name them."""
    try:
        with parameters_in(graph):
            return function(*arguments)
    except (AttributeError, TypeError) as error:
        type_name = type(params).__name__
        is_told = isinstance(error, DynbatchError) and not isinstance(error, NoPartsError)
        if is_told or not is_leaf(params) or type_name not in str(error):
            raise
        said = "none were" if params is None else f"one {type_name} was"
        raise GraphError.at_caller(
            f"cell {getattr(function, '__name__', 'cell')!r} reads its parameters, and {said} "
            f"given ({problem_of(error)}).\n"
            "  rule: the caller gives a cell its parameters\n"
            "  fix:  db.scan(cell, xs, init, params), with a module, a namespace, a dict or a list"
        ) from error


def _require_arguments(name: str, function: Callable[..., object], count: int) -> None:
    """Raise `ArgumentError` if a cell does not take as many arguments as a scan gives it."""
    try:
        form = inspect.signature(function)
    except ValueError:  # some functions of C do not tell
        return
    try:
        form.bind(*[None] * count)
    except TypeError:
        wanted = "x, state, params" + ", memory" * (count > 3)
        raise refused(
            f"cell {name!r}", f"it takes {form}, and a scan gives it {count} arguments",
            f"db.scan calls cell({wanted}); params is None if none are given",
            f"def {name}({wanted})",
        ) from None  # fmt: skip


def require_inside(name: str, returned: Sequence[Node], graph: TraceGraph) -> None:
    for node in returned:
        if node.graph is not graph:
            raise GraphError.at_caller(
                f"cell {name!r} returned {node!r}, which was made outside it.\n"
                "  rule: a cell runs once for many sentences; it reads its arguments only\n"
                "  fix:  give it what it reads of the sentence as an argument; db.scan has `memory`"
            )


def _returned(
    name: str, returned: object, states: Sequence[Node], single: bool
) -> tuple[Node, list[Node]]:
    output, parts = None, None
    if isinstance(returned, tuple) and len(returned) == 2:
        output, parts = returned
        if single and isinstance(parts, Node):
            parts = (parts,)
    following = [n for n in parts if isinstance(n, Node)] if isinstance(parts, tuple) else []
    is_state = isinstance(parts, tuple) and len(parts) == len(following) == len(states)
    if not isinstance(output, Node) or not is_state:
        raise ShapeError.at_caller(
            f"cell {name!r} must return (output, next state); the state has {len(states)} part(s)."
            f"\n  got:  {returned!r}\n"
            "  fix:  `return h, h`, or `return h, (h, c)` for a state of two parts"
        )
    for number, (before, after) in enumerate(zip(states, following, strict=True)):
        if before.shape != after.shape:
            raise _another_width(name, number, states, following)
    return output, following


def _another_width(
    name: str, part: int, before: Sequence[Node], after: Sequence[Node]
) -> ShapeError:
    which = "`init`" if len(before) == 1 else f"part {part} of `init`"
    entered, leaves = before[part], after[part]
    if entered.ndim > 1:
        return ShapeError.at_caller(
            f"cell {name!r}: {which} has shape {entered.shape}, the cell's next state "
            f"{leaves.shape}.\n"
            "  rule: a state keeps its shape from step to step\n"
            "  fix:  F.outer(k, v) is (d, e), F.vecmat(k, S) is Sᵀ k, F.matvec(S, q) is S q",
            made_at(leaves),
        )
    if leaves.ndim == 1:
        widths = ", ".join([str(node.width) for node in after])
        right = widths if len(before) == 1 else f"({widths})"
        fix = f"init={right} for a state of that width, else project it to {entered.width} features"
        left = f"width {leaves.width}"
    else:
        left = f"shape {leaves.shape}"
        fix = f"return a vector of {entered.width} features as the next state"
        if leaves.ndim > 1 and len(before) == 1:
            fix = f"init=db.zeros{leaves.shape} for a state of that shape"
        elif leaves.ndim > 1:
            fix = f"db.zeros{leaves.shape} as part {part} of `init`, for a state of that shape"
    return ShapeError.at_caller(
        f"cell {name!r}: {which} has width {entered.width}, the cell's next state {left}.\n"
        f"  rule: a state keeps its width from step to step\n  fix:  {fix}",
        made_at(leaves),
    )
