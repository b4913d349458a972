"""Results of calls: their form, their sum, and their parts as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

from dynbatch.arguments import listed
from dynbatch.backend import Array
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.forms import NO_FORM, NodeTree, ResultForm, Returned, leaves
from dynbatch.cells.calls.table import ROW_BITS, CallGraph, CallTable, Several
from dynbatch.errors import EmptyBatchError, GraphError, ShapeError
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.reduce import sum as sum_of
from dynbatch.nodes.shape.join import stack as stack_nodes

Result: TypeAlias = Call | ResultPart | TuplePart
"""The result of a call, or a part of one."""

_RESULT_TYPES = frozenset((Call, ResultPart, TuplePart))


class Results(Sequence[Any]):
    """Results of calls, as a list of calls to whoever reads it; or the rows of a matrix.

    Attributes:
        values:  of each its number (see `table.CallGraph`), or itself where it is a part of a call.
        ready:   the first phase whose calls may read all of them.
        form_id: of each.
        tables:  those of their calls.
        calls, firsts: once they are `located`, the number of each one's call, and the first of the
            call's values that it is; None where each is a call.
        by_table: what `rows_by_table` gave last for nodes of which these ones' came first, with the
            indices of these: they are asked for when a run is planned, and when it runs.
    """

    __slots__ = ("by_table", "calls", "firsts", "form_id", "graph", "ready", "tables", "values")
    calls: Sequence[int]
    firsts: list[int] | None
    by_table: list[tuple[list[int], dict[CallTable, tuple[Array, Array]]]]

    def __init__(
        self,
        graph: CallGraph,
        values: Sequence[Any],
        ready: int,
        form_id: int,
        tables: tuple[CallTable, ...],
    ) -> None:
        self.graph = graph
        self.values = values
        self.ready = ready
        self.form_id = form_id
        self.tables = tables

    @classmethod
    def of(cls, results: Sequence[Result]) -> Results:
        """The results in a list of at least one."""
        values = [x.origin.number << ROW_BITS | x.row if type(x) is Call else x for x in results]
        ready, first = max([result.ready for result in results]), results[0]
        tables = dict.fromkeys([result.origin for result in results])
        return cls(first.origin.graph, values, ready, first.form_id, tuple(tables))

    @classmethod
    def of_matrix(cls, matrix: Any) -> Results:
        """The rows of a matrix; those of a traced one are nodes."""
        graph = matrix.graph
        if graph.is_trace:
            return cls.of_nodes([matrix[k] for k in range(matrix.rows)], graph)
        first = graph.number_of(matrix) << ROW_BITS
        rows, form_id = range(first, first + matrix.rows), graph.form_ids[matrix.width]
        return cls(graph, rows, matrix.phase + 1, form_id, ())

    @classmethod
    def of_nodes(cls, nodes: Sequence[Any], graph: CallGraph) -> Results:
        """Nodes, or tuples of nodes, that are not to be read as results of calls."""
        return cls(graph, nodes, 0, NO_FORM, ())

    def located(self) -> Results:
        """Note `calls`, where these results are stacked.

        Later their memory has left the cache, and to look at each once more takes several times as
        long.
        """
        parts = [] if {*map(type, self.values)} == {int} else self[:]
        calls = [part.origin.number << ROW_BITS | part.row for part in parts] or self.values
        self.calls, self.firsts, self.by_table = calls, [part.first for part in parts] or None, []
        return self

    @property
    def are_of_matrix(self) -> bool:
        return type(self.values) is range

    @property
    def form(self) -> ResultForm:
        tables = self.tables if self.graph.origins else ()  # a closed graph refuses what follows
        forms = [table.form for table in tables if table.form_id == self.form_id]
        return forms[0] if forms else self[0].form  # without making a node, if possible

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[k] for k in range(len(self))[key]]
        value = self.values[key]
        return self.graph.value_at(value) if type(value) is int else value

    def __repr__(self) -> str:
        return f"{len(self)} results"


class SumArgument(Several):
    """The sum of several calls' results, part by part. Made by `total`.

    A call that is given it gathers the members. Once somebody has taken a part of it, that part is
    a node, which may be kept: calls that are given the total from then on read its parts.
    """

    __slots__ = ("_nodes", "form")

    def __init__(self, members: Sequence[Result], form: ResultForm) -> None:
        super().__init__(members, members[0].form_id)
        self.form = form
        self._nodes: NodeTree | None = None

    @property
    def nodes(self) -> NodeTree:
        if self._nodes is None:
            self._nodes = by_part(_sum, [structure_of(member) for member in self.members])
        return self._nodes

    def _taken(self) -> NodeTree:
        if self.form_id != NO_FORM:
            self.form_id = NO_FORM  # so that no table of calls takes it as it is
            totals = self.members[0].origin.graph.totals
            totals.update([(node.index, self) for node in leaves(self.nodes)])
        return self.nodes

    def __len__(self) -> int:
        return len(self.form) if isinstance(self.form, tuple) else len(self.nodes)

    def __getitem__(self, key: int | slice) -> Any:
        return self._taken()[key]

    def __iter__(self) -> Iterator[NodeTree]:
        return iter(self._taken())

    def __repr__(self) -> str:
        return f"total of {len(self.members)}: {self.form}"


def structure_of(value: Any) -> Any:
    """The result of a call as nodes and tuples of nodes; anything else unchanged."""
    if isinstance(value, SumArgument):
        return value.nodes
    is_tuple = isinstance(value, Call) and isinstance(value.form, tuple)
    if is_tuple or isinstance(value, TuplePart | tuple):
        return tuple([structure_of(part) for part in value])
    return value


def total(results: Sequence[Returned]) -> Returned:
    """The sum of results of calls, part by part; an argument for another call.

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
    members: Any = listed(
        "total", "results", results, "give what the calls returned: db.total([h1, h2])"
    )
    if not members:
        raise EmptyBatchError.at_caller(
            "total: the list of results is empty.\n"
            "  rule: an empty sum has no widths; give the widths of zeros instead\n"
            "  fix:  db.total(below) if below else (64, 64), the widths of the state"
        )
    if not are_results(members):
        return by_part(_sum, [structure_of(result) for result in members])  # type: ignore[no-any-return]
    form = common_form("total", members)
    argument: object = members[0] if len(members) == 1 else SumArgument(members, form)
    return argument  # type: ignore[return-value]


def are_results(values: Sequence[object]) -> TypeGuard[Sequence[Result]]:
    return _RESULT_TYPES.issuperset(map(type, values))


def common_form(what: str, results: Sequence[Result]) -> ResultForm:
    """The form that all results have.

    Raises:
        ShapeError: the forms differ.
        GraphError: the graphs differ.
    """
    if len({result.form_id for result in results}) == 1:  # form ids are of one graph
        return results[0].form
    graph = results[0].origin.graph
    for result in results:
        if result.origin.graph is not graph:
            raise GraphError.at_caller(
                f"{what}: the results belong to different graphs ({result!r}).\n"
                "  rule: every node of an expression has one owner\n"
                "  fix:  build the sentence in one `with db.Graph()` block"
            )
    raise ShapeError.at_caller(
        f"{what}: the results have different forms: {results[0]!r} and others.\n"
        f"  rule: each part is a {what} of its own, of equal widths\n"
        "  fix:  give results of cells that return the same widths"
    )


def by_part(join: Callable[[Sequence[Node]], Node], structures: Sequence[Any]) -> Any:
    if isinstance(structures[0], tuple):
        return tuple([by_part(join, part) for part in zip(*structures, strict=True)])
    return join(structures)


def _sum(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else sum_of(stack_nodes(nodes), dim=0)
