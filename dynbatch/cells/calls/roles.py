"""Tells which argument of a call is the cell's parameters; the others are values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.cells.calls.arguments import Zeros, form_given, graphs_of, is_value
from dynbatch.cells.calls.call import TuplePart
from dynbatch.cells.calls.compiled_step import trace_step
from dynbatch.cells.calls.forms import CellFunction, Form, leaves
from dynbatch.cells.calls.results import SumArgument
from dynbatch.cells.calls.table import CallGraph
from dynbatch.errors import DtypeError, GraphError, ShapeError
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.sources import parameter
from dynbatch.parameter import Parameter


class Roles:
    """Tells the parameters of one cell from its values.

    Nodes, results of calls, widths, and tuples of them are values; the one other argument is the
    parameters. A parameter of one dimension can be either, alone or in a tuple. Beside something
    that cannot be a value, a module say, it is a value. Alone it is the parameters, unless the
    function takes it for a node: what `F.linear(x, p)` reads is a parameter, what `F.tanh(p)` reads
    a node, and what `x + p` computes is the same either way.
    """

    def __init__(self, function: CellFunction, name: str) -> None:
        self._function = function
        self._name = name
        self._known: dict[tuple[object, ...], bool] = {}  # whether an argument is the parameters

    def of(self, arguments: Sequence[object]) -> tuple[int | None, tuple[object, ...], CallGraph]:
        """The parameters' position or None, the arguments with values as nodes, and the graph.

        Raises:
            DtypeError: several arguments could be the parameters, there is no node, or one is
                `zeros`.
            GraphError: the nodes belong to different graphs.
            ShapeError: a width is not positive.
        """
        others = [k for k, argument in enumerate(arguments) if not is_value(argument)]
        only = [k for k in others if not may_be_value(arguments[k])]
        for k in others:
            self._check_no_nodes(arguments[k])
            self._check_no_zeros(arguments[k])
        if len(only) > 1 or (not only and len(others) > 1):
            raise self._several([arguments[k] for k in only or others])
        at: int | None = next(iter(only or others), None)
        graph = self._graph([value for k, value in enumerate(arguments) if k != at])
        if at is not None and not only and not self._is_params(arguments, at, graph):
            at = None
        if len(others) > (at is not None):
            arguments = [a if k == at else as_value(a, graph) for k, a in enumerate(arguments)]
        self._check_widths([value for k, value in enumerate(arguments) if k != at])
        return at, tuple(arguments), graph

    def _is_params(self, arguments: Sequence[object], at: int, graph: Owner) -> bool:
        """Whether the function reads its one parameter as such, rather than as a node."""
        params = arguments[at]
        forms: list[Form] = [form_given(value) for k, value in enumerate(arguments) if k != at]
        with_value = [*forms[:at], form_given(params), *forms[at:]]
        key = (at, tuple(with_value), graph.dtype.char)
        if key not in self._known:
            takes_params = self._traces(forms, at, params, graph)
            self._known[key] = takes_params or not self._traces(with_value, None, 0, graph)
        return self._known[key]

    def _traces(self, forms: Sequence[Form], at: int | None, params: object, graph: Owner) -> bool:
        try:
            trace_step(self._function, forms, at, params, graph.dtype)
        except Exception:  # whatever the function raises: it cannot do with that
            return False
        return True

    def _several(self, arguments: Sequence[object]) -> DtypeError:
        arguments = [argument for argument in arguments if argument is None] or arguments
        named = " and ".join([repr(argument).splitlines()[0] for argument in arguments])
        fix = (
            "make arrays nodes with F.input(graph, array), a parameter as value with\n"
            "        F.parameter(graph, p), and lists tuples; put parameters in one module"
        )
        if arguments[0] is None:
            fix = "if there is no state yet, give its width: 64 for 64 zeros"
        elif all(map(may_be_value, arguments)):
            fix = (
                "say which are values, F.parameter(graph, p), or give the cell's parameters as a\n"
                "        module, a namespace or a dict: then a bare parameter is a value"
            )
        problem = "are not values" if arguments[1:] else "is not a value"
        return DtypeError.at_caller(
            f"cell {self._name!r}: {named} {problem}.\n"
            "  rule: a cell is given nodes, results of cells, tuples of them, widths for "
            f"zeros,\n        and its parameters as one argument\n  fix:  {fix}"
        )

    def _check_no_nodes(self, params: object) -> None:
        if _holds_nodes(params):
            container = type(params).__name__
            raise DtypeError.at_caller(
                f"cell {self._name!r}: a {container} of nodes is neither a value nor parameters.\n"
                "  rule: a state of several parts is a tuple of nodes\n"
                f"  fix:  (h, c) in place of the {container}; db.stack makes rows of many results, "
                "db.total their sum"
            )

    def _check_no_zeros(self, argument: object) -> None:
        parts = argument if isinstance(argument, tuple) else (argument,)
        for part in parts:
            if isinstance(part, Zeros):
                shape = ", ".join(map(str, part.shape))
                raise DtypeError.at_caller(
                    f"cell {self._name!r}: db.zeros({shape}) in a call.\n"
                    "  rule: a call is given nodes, or a width for a vector of zeros\n"
                    f"  fix:  db.initial_state(graph, db.zeros({shape})) is a node"
                )

    def _graph(self, values: Sequence[object]) -> CallGraph:
        graphs = list(dict.fromkeys(graphs_of(values)))
        if len(graphs) == 1:
            graph: CallGraph = graphs[0]
            return graph
        if not graphs:
            raise DtypeError.at_caller(
                f"cell {self._name!r}: there is no node among its arguments {values!r}.\n"
                "  rule: a call belongs to the graph of the nodes it is given\n"
                "  fix:  give it at least one node, F.input(graph, array)"
            )
        raise GraphError.at_caller(
            f"cell {self._name!r}: its arguments belong to different graphs.\n"
            "  rule: every node of an expression has one owner\n"
            "  fix:  build the sentence in one `with db.Graph()` block; what a cell reads comes\n"
            "        in through its arguments"
        )

    def _check_widths(self, values: Sequence[object]) -> None:
        for value in leaves(tuple(values)):
            if isinstance(value, int | np.integer) and value < 1:
                raise ShapeError.at_caller(
                    f"cell {self._name!r}: zeros of width {value}.\n"
                    "  rule: an integer stands for a vector of that many zeros\n"
                    "  fix:  give a width of at least 1"
                )


def may_be_value(argument: object) -> bool:
    """Whether an argument is a value, or becomes one with parameters of one dimension as nodes."""
    if isinstance(argument, Parameter):
        return len(argument.shape) == 1
    if isinstance(argument, tuple):
        return bool(argument) and all(map(may_be_value, argument))
    return is_value(argument)


def as_value(argument: object, graph: Owner) -> object:
    if isinstance(argument, Parameter):
        return parameter(graph, argument)
    if isinstance(argument, tuple):
        return tuple([as_value(part, graph) for part in argument])
    return argument


def _holds_nodes(argument: object) -> bool:
    if not isinstance(argument, list | dict):
        return False
    parts = argument.values() if isinstance(argument, dict) else argument
    return any([isinstance(part, Node | TuplePart | SumArgument) for part in parts])
