"""What calls are given besides other calls: nodes, zeros, tuples of parts, and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dynbatch.arguments import listed
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.forms import NO_FORM, Form, MatrixForm, ResultForm, leaves
from dynbatch.cells.calls.table import CallTable, ValueHandle, nodes_among
from dynbatch.errors import EmptyBatchError, GraphError, ShapeError
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.reduce import sum as sum_of
from dynbatch.nodes.shape.indexing import Row
from dynbatch.nodes.shape.structure import stack as stack_nodes
from dynbatch.nodes.sources import constant

RESULTS = frozenset((Call, ResultPart, TuplePart))


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
        """The node, where there is one."""
        return [] if self.origin is None else [self.origin]


class TupleArgument:
    """A tuple whose parts come from several places: one light value for each leaf.

    depths: of each table of calls among them, the greatest depth.
    given:  the tuple itself, so that its identity stays its own.
    """

    __slots__ = ("depths", "form_id", "given", "ready", "values")
    origin = None

    def __init__(self, values: Sequence[Any], form_id: int, given: Any = None) -> None:
        self.values = values
        self.given = given
        self.depths = depths_of(values)
        self.form_id = form_id
        self.ready = max([value.ready for value in values])

    def given_nodes(self) -> list[Node]:
        """The nodes that its parts are, or are made of."""
        return nodes_among(self.values)


class SumArgument:
    """The sum of what several calls returned, part by part. Made by `total`; see `TupleArgument`.

    A call that is given it gathers the members. Once somebody has taken a part of it, that part is
    a node, which may be kept: calls that are given the total from then on read its parts.
    """

    __slots__ = ("_nodes", "depths", "form", "form_id", "members", "ready")
    origin = None

    def __init__(self, members: Sequence[Any], form: ResultForm) -> None:
        self.members = members
        self.depths = depths_of(members)
        self.form = form
        self.form_id: int = members[0].form_id
        self.ready: int = max([member.ready for member in members])
        self._nodes: Any = None

    def given_nodes(self) -> list[Node]:
        """The nodes of its members."""
        return nodes_among(self.members)

    @property
    def nodes(self) -> Any:
        """The sum as ordinary nodes, in the structure of what the calls returned."""
        if self._nodes is None:
            self._nodes = by_part(_sum, [structure_of(member) for member in self.members])
        return self._nodes

    def _taken(self) -> Any:
        """The nodes of its parts, for somebody who may keep them."""
        if self.form_id != NO_FORM:
            self.form_id = NO_FORM  # so that no table of calls takes it as it is
            graph = self.members[0].origin.graph
            graph.totals.update([(node.index, self) for node in _leaves_of(self.nodes)])
        return self.nodes

    def __len__(self) -> int:
        return len(self.form) if isinstance(self.form, tuple) else len(self.nodes)

    def __getitem__(self, key: Any) -> Any:
        return self._taken()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._taken())

    def __repr__(self) -> str:
        return f"total of {len(self.members)}: {self.form}"


def depths_of(values: Sequence[Any]) -> dict[Any, int]:
    """Of each table of calls that the values come from, the greatest depth."""
    found: dict[Any, int] = {}
    for value in values:
        if isinstance(value, Call | ResultPart | TuplePart):
            found[value.origin] = max(found.get(value.origin, -1), value.depth)
        elif isinstance(value, SumArgument):
            for table, depth in value.depths.items():
                found[table] = max(found.get(table, -1), depth)
    return found


def calls_given(table: CallTable, value: Any) -> list[ValueHandle]:
    """The calls of a table that were given this very value, alone or as part of a tuple."""
    rows = {
        row
        for column in table.columns
        for row, given in enumerate(column)
        if given is value
        or (type(given) is TupleArgument and any([part is value for part in given.values]))
    }
    return [table.calls[row] for row in sorted(rows)]


def structure_of(value: Any) -> Any:
    """What a call returned, as nodes and tuples of nodes."""
    if isinstance(value, SumArgument):
        return value.nodes
    if isinstance(value, Call) and isinstance(value.origin.form, tuple):
        return tuple([structure_of(part) for part in value])
    if isinstance(value, TuplePart | tuple):
        return tuple([structure_of(part) for part in value])
    return value


def total(results: Sequence[Any]) -> Any:
    """The sum of what calls of a cell returned, part by part; an argument for another call.

    A tree node has any number of children. Their sum is gathered by the call that is given it: no
    node of its own, and nodes with 1 and with 20 children run in the same batch.

    Args:
        results: at least one; all of one form. Where there may be none, give the widths of zeros
            instead, as in `db.scan`'s `init`: `db.total(children) if children else (64, 64)`.

    Raises:
        EmptyBatchError: `results` is empty.
        ShapeError:      the forms differ.
        GraphError:      the graphs differ.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> @db.cell
        ... def node(x, below):
        ...     return x + below
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [1.0])
        ...     leaves = [node(x, 1) for _ in range(3)]
        ...     node(x, db.total(leaves)).value.tolist()
        [4.0]
    """
    results = listed(
        "total", "results", results, "give what the calls returned: db.total([h1, h2])"
    )
    if not results:
        raise EmptyBatchError.at_caller(
            "total: the list of results is empty.\n"
            "  rule: a sum of none has no widths; those of zeros stand for it\n"
            "  fix:  db.total(below) if below else (64, 64), the widths of the state"
        )
    if not are_results(results):
        return by_part(_sum, [structure_of(result) for result in results])
    rule, fix = "the sum is taken part by part", "sum results of cells that return the same widths"
    form = common_form("total", results, rule, fix)
    return results[0] if len(results) == 1 else SumArgument(results, form)


def are_results(values: Sequence[Any]) -> bool:
    """Whether all are what calls returned, or parts of it."""
    return all([type(value) in RESULTS for value in values])


def common_form(what: str, results: Sequence[Any], rule: str, fix: str) -> ResultForm:
    """The form that all results have.

    Raises:
        ShapeError: the forms differ; the error ends with `rule` and `fix`.
        GraphError: the graphs differ.
    """
    if len({result.form_id for result in results}) > 1:  # form ids are of one graph
        require_one_graph(what, results)
        raise ShapeError.at_caller(
            f"{what}: the results have different forms: {results[0]!r} and others.\n"
            f"  rule: {rule}\n  fix:  {fix}"
        )
    return form_of(results[0])


def require_one_graph(what: str, results: Sequence[Any]) -> None:
    """Raise `GraphError` if calls, or parts of them, belong to several graphs."""
    graph = results[0].origin.graph
    for result in results:
        if result.origin.graph is not graph:
            raise GraphError.at_caller(
                f"{what}: the results belong to different graphs ({result!r}).\n"
                "  rule: every node of an expression has one owner\n"
                "  fix:  build the sentence in one `with db.Graph()` block"
            )


def form_of(value: Call | TuplePart | ResultPart) -> ResultForm:
    """The form of what a call, or a part of it, stands for."""
    if isinstance(value, TuplePart):
        return value.form
    return value.origin.form if isinstance(value, Call) else value.origin.widths[value.first]


def _leaves_of(nodes: Any) -> Iterator[Node]:
    """All nodes of a structure."""
    if isinstance(nodes, tuple):
        for part in nodes:
            yield from _leaves_of(part)
    else:
        yield nodes


def by_part(join: Callable[[Sequence[Node]], Node], structures: Sequence[Any]) -> Any:
    """Nodes joined part by part, in the structure of one."""
    if isinstance(structures[0], tuple):
        return tuple([by_part(join, part) for part in zip(*structures, strict=True)])
    return join(structures)


def _sum(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else sum_of(stack_nodes(nodes), dim=0)


# What a call may be given ------------------------------------------------------------------------


def is_value(argument: Any) -> bool:
    """Whether an argument of a call is a value, and not its parameters."""
    if isinstance(argument, Node | TuplePart | SumArgument | int | np.integer):
        return not isinstance(argument, bool)
    return isinstance(argument, tuple) and bool(argument) and all(map(is_value, argument))


def graphs_of(values: Sequence[Any]) -> Iterator[Owner]:
    """The graphs of all nodes among some arguments."""
    for value in values:
        if isinstance(value, Node):
            yield value.graph
        elif isinstance(value, TuplePart):
            yield value.call.graph
        elif isinstance(value, SumArgument):
            yield from graphs_of(value.members)
        elif isinstance(value, tuple):
            yield from graphs_of(value)


def form_given(value: Any) -> Form:
    """The form of an argument."""
    if isinstance(value, Call | TuplePart | ResultPart):
        return form_of(value)
    if isinstance(value, SumArgument):
        return value.form
    if isinstance(value, tuple):
        return tuple([form_given(part) for part in value])
    if isinstance(value, Node):
        return _form_of_node(value)
    return int(value)


def _form_of_node(node: Node) -> Form:
    return MatrixForm(node.width) if node.ndim > 1 else node.width if node.ndim else 0


def holds_matrix(value: Any) -> bool:
    """Whether a matrix is among an argument's values."""
    if isinstance(value, tuple):
        return any(map(holds_matrix, value))
    return isinstance(value, Node) and not isinstance(value, Call) and value.ndim > 1


def wrapped(value: Any, graph: Any) -> Any:
    """An argument with the attributes of a `ValueHandle`."""
    if isinstance(value, SumArgument) and value.form_id == NO_FORM:
        value = value.nodes
    if isinstance(value, ValueHandle | TuplePart | SumArgument | Row):
        return value
    if isinstance(value, tuple):
        whole = _whole(value)
        if whole is not None:
            return whole
        if _is_zeros(value):
            return NodeArgument(None, graph.form_ids.of(value))
        lights = [light for part in value for light in _lights(part, graph)]
        return TupleArgument(lights, graph.form_ids.of(form_given(value)), value)
    if isinstance(value, Node):
        return NodeArgument(value, graph.form_ids.of(_form_of_node(value)))
    return NodeArgument(None, graph.form_ids.of(int(value)))


def _is_zeros(value: Any) -> bool:
    """Whether an argument is made of widths only."""
    if isinstance(value, tuple):
        return all(map(_is_zeros, value))
    return isinstance(value, int)


def _whole(value: tuple[Any, ...]) -> Call | TuplePart | None:
    """The call, or part of it, that was unpacked to this very tuple."""
    parts = [part for part in value if isinstance(part, ResultPart | TuplePart)]
    if len(parts) < len(value):
        return None
    call, start = parts[0].call, parts[0].first
    forms = tuple(map(form_of, parts))
    end = start
    for part, form in zip(parts, forms, strict=True):
        if part.call is not call or part.first != end:
            return None
        end += len(leaves(form))
    if start == 0 and forms == call.origin.form:
        return call
    return TuplePart(call, forms, start, call.origin.graph.form_ids.of(forms))


def _lights(value: Any, graph: Any) -> list[Any]:
    """One light value for each leaf of an argument."""
    light = wrapped(value, graph)
    if isinstance(light, TupleArgument):
        return list(light.values)
    if isinstance(light, SumArgument) and isinstance(light.form, tuple):
        return [one for part in light.nodes for one in _lights(part, graph)]
    if isinstance(light, Call) and isinstance(light.origin.form, tuple):
        return [one for part in light for one in _lights(part, graph)]
    if isinstance(light, TuplePart):
        return [one for part in light for one in _lights(part, graph)]
    return [light]


def as_arguments(value: Any, graph: Owner) -> Any:
    """An argument as the cell's own function takes it: nodes, and tuples of them."""
    if isinstance(value, tuple):
        return tuple([as_arguments(part, graph) for part in value])
    if isinstance(value, SumArgument):
        return value.nodes
    if isinstance(value, Node | TuplePart):
        return value
    return constant(graph, 0.0, (int(value),))
