"""Arguments of calls other than results of calls: nodes, zeros, and tuples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.forms import NO_FORM, Form, MatrixForm, leaves
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.table import CallGraph, CallTable, Several, ValueHandle
from dynbatch.nodes.arguments import refuse_dimensions
from dynbatch.nodes.node import Node, Owner, Shape
from dynbatch.nodes.shape.row import Row
from dynbatch.nodes.sources import constant
from dynbatch.parameter import Parameter

Argument: TypeAlias = "ValueHandle | TuplePart | Row | NodeArgument | TupleArgument | SumArgument"
"""An argument as a table records it, with the attributes of a `ValueHandle`."""


@dataclass(frozen=True)
class Zeros:
    """The shape of a part of a scan's first state, which is zeros; a call refuses it."""

    shape: Shape


class NodeArgument:
    """An ordinary node, or zeros, with the attributes of a `ValueHandle`."""

    __slots__ = ("first", "form_id", "origin", "ready", "row")
    depths = None

    def __init__(self, origin: Node | None, form_id: int) -> None:
        self.origin = origin
        self.row = 0
        self.first = 0
        self.form_id = form_id
        self.ready = 0 if origin is None else origin.phase + 1

    def given_nodes(self) -> list[Node]:
        return [] if self.origin is None else [self.origin]


class TupleArgument(Several):
    """A tuple whose parts come from several places: an argument for each leaf.

    given: the tuple itself, which is kept so that no other one has its id.
    """

    __slots__ = ("given",)

    def __init__(self, members: Sequence[Argument], form_id: int, given: object = None) -> None:
        super().__init__(members, form_id)
        self.given = given


def calls_given(table: CallTable, value: object) -> list[ValueHandle]:
    """The calls of a table whose arguments contain this value, alone or in a tuple."""
    rows = {
        row
        for column in table.columns
        for row, argument in enumerate(column)
        if argument is value
        or (type(argument) is TupleArgument and any([part is value for part in argument.members]))
    }
    return [table.call(row) for row in sorted(rows)]


def is_value(argument: object) -> bool:
    """Whether an argument of a call is a value, and not its parameters."""
    if isinstance(argument, Node | TuplePart | SumArgument | int | np.integer):
        return not isinstance(argument, bool)
    return isinstance(argument, tuple) and bool(argument) and all(map(is_value, argument))


def graphs_of(values: Sequence[object]) -> Iterator[Any]:
    for value in leaves(tuple(values)):
        if isinstance(value, Node):
            yield value.graph
        elif isinstance(value, TuplePart):
            yield value.call.graph
        elif isinstance(value, SumArgument):
            yield from graphs_of(value.members)


def form_given(value: Any) -> Form:
    if isinstance(value, tuple):
        return tuple(map(form_given, value))
    if isinstance(value, Parameter):  # as a value
        return value.shape[0]
    if isinstance(value, ValueHandle | TuplePart | SumArgument):
        return value.form
    if isinstance(value, Node):
        if value.ndim > 2:
            refuse_dimensions("an argument of a cell", value)
        return MatrixForm(value.width) if value.ndim > 1 else value.width if value.ndim else 0
    return int(value)


def holds_matrix(value: object) -> bool:
    return any(
        [isinstance(x, Node) and not isinstance(x, Call) and x.ndim > 1 for x in leaves(value)]
    )


def as_argument(value: Any, graph: CallGraph) -> Argument:
    if isinstance(value, SumArgument) and value.form_id == NO_FORM:
        value = value.nodes
    if isinstance(value, ValueHandle | TuplePart | SumArgument | Row):
        return value
    if isinstance(value, tuple):
        whole = _whole(value)
        if whole is not None:
            return whole
        form_id = graph.form_ids[form_given(value)]
        if all([isinstance(x, int) for x in leaves(value)]):
            return NodeArgument(None, form_id)
        return TupleArgument(
            [x for part in value for x in _leaf_arguments(part, graph)], form_id, value
        )
    node = value if isinstance(value, Node) else None
    return NodeArgument(node, graph.form_ids[form_given(value)])


def _whole(value: tuple[object, ...]) -> Call | TuplePart | None:
    parts = [part for part in value if isinstance(part, ResultPart | TuplePart)]
    if len(parts) < len(value):
        return None
    call, start = parts[0].call, parts[0].first
    forms = tuple([part.form for part in parts])
    end = start
    for part, form in zip(parts, forms, strict=True):
        if part.call is not call or part.first != end:
            return None
        end += len(leaves(form))
    if start == 0 and forms == call.form:
        return call
    return TuplePart(call, forms, start, call.origin.graph.form_ids[forms])


def _leaf_arguments(value: object, graph: CallGraph) -> list[Argument]:
    argument = as_argument(value, graph)
    if isinstance(argument, TupleArgument):
        return list(argument.members)
    parts: Iterable[object] = ()
    if isinstance(argument, SumArgument) and isinstance(argument.form, tuple):
        parts = argument.nodes
    elif isinstance(argument, TuplePart) or (
        isinstance(argument, Call) and isinstance(argument.form, tuple)
    ):
        parts = argument
    return [x for part in parts for x in _leaf_arguments(part, graph)] or [argument]


def as_nodes(value: Any, graph: Owner) -> Any:
    """An argument as the cell's function takes it: a node, or a tuple."""
    if isinstance(value, tuple):
        return tuple([as_nodes(part, graph) for part in value])
    if isinstance(value, SumArgument):
        return value.nodes
    if isinstance(value, Node | TuplePart):
        return value
    return constant(graph, 0.0, (int(value),))
