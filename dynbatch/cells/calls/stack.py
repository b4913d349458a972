"""`stack`: results of many calls as rows of a matrix, with one gather per mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from dynbatch.arguments import listed
from dynbatch.backend import Array
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.forms import NO_FORM, Returned, build, leaves
from dynbatch.cells.calls.region import Earlier, by_run_and_value
from dynbatch.cells.calls.results import (
    Results,
    are_results,
    by_part,
    common_form,
    structure_of,
)
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallTable, first_uses
from dynbatch.errors import EmptyBatchError, ShapeError
from dynbatch.indexing import repeat
from dynbatch.kernels import arrays
from dynbatch.kernels.gathers import GatherTable, gather, give_back
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.join import stack as stack_nodes
from dynbatch.nodes.signature import intern_signature
from dynbatch.nodes.sources import constant
from dynbatch.nodes.syntax.registry import FUNCTIONS
from dynbatch.ragged import Ragged


class StackCalls(Operation):
    """One value of each of several calls, as rows of a matrix (K, D), or scalars as a vector (K,).

    Shape:  K calls, of (D,) each -> (K, D); of () -> (K,).
    Batches with:  every other StackCalls of its width.
    """

    __slots__ = ("leaf", "results")
    only_moves = True
    results: Results
    leaf: int

    def __init__(self, results: Results, leaf: int) -> None:
        first = results.firsts[0] if results.firsts else 0
        self.graph = graph = results.graph
        width = graph.origins[results.calls[0] >> ROW_BITS].widths[first + leaf]
        self.results = results
        self.leaf = leaf
        self.ndim = 2 if width else 1
        self.rows = len(results) if width else 1
        self.width = width or len(results)
        self.ragged = ROWS if width else ROWS | WIDTH
        self.sig = intern_signature((StackCalls, width))
        self.phase = results.ready
        self._block = None
        self.index = graph.add(self)

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return tuple([x if isinstance(x, Call) else x.call for x in self.results])

    def indices_read(self) -> list[int]:
        return [*self.results.calls]

    def producers(self) -> Sequence[Node]:
        return _homes([self])

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["width"]

    @classmethod
    def sources(cls, nodes: Sequence[StackCalls]) -> list[list[Any]]:
        return [[home] for home in _homes(nodes)]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        spaces, table = batch.memo["rows"] = _locate(batch.nodes)
        values = [space.of(xs[space.source]) for space in spaces]
        gather(values, table, 0, table.rows.size, y.flat.reshape(table.rows.size, -1))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        for dx in dxs:
            if dx is not None:
                arrays.fill(dx.values, 0)
        # Forward is left out where nobody reads the rows: those of a sum, say.
        spaces, table = batch.memo.get("rows") or _locate(batch.nodes)
        wanted = [(space, dxs[space.source]) for space in spaces]
        gradients = [None if dx is None else space.of(dx) for space, dx in wanted]
        give_back(dy.flat.reshape(table.rows.size, -1), table, 0, table.rows.size, gradients)


def rows_by_table(nodes: Sequence[StackCalls]) -> dict[CallTable, tuple[Array, Array]]:
    """The calls of each table: which of all that the nodes stack they are, and their rows there.

    Columns of integers instead of a loop over calls, of which a mini-batch has thousands.
    """
    indices = [node.index for node in nodes]
    for known, by_table in nodes[0].results.by_table if nodes else ():
        if known == indices:
            return by_table
    calls = np.fromiter(chain.from_iterable([node.results.calls for node in nodes]), np.int64)
    codes, rows = calls >> ROW_BITS, calls & ROW
    by_table = {}
    for code in first_uses(codes):
        terms = np.flatnonzero(codes == code)
        by_table[nodes[0].results.graph.origins[code]] = (terms, rows[terms])
    if nodes:
        nodes[0].results.by_table = [(indices, by_table)]
    return by_table


def _homes(nodes: Sequence[StackCalls]) -> list[Node]:
    """The regions that have run what the nodes stack."""
    tables = dict.fromkeys(chain.from_iterable([node.results.tables for node in nodes]))
    if all([len(table.runs) == 1 for table in tables]):
        return list(dict.fromkeys([table.runs[0].node for table in tables]))
    homes = {
        table.runs[run].node: None
        for node in nodes
        for table, (_, rows) in rows_by_table([node]).items()
        for run in np.unique(table.run_of[rows]).tolist()
    }
    return list(homes)


def _locate(nodes: Sequence[StackCalls]) -> tuple[list[Earlier], GatherTable]:
    """Places of a batch's rows: arrays, and which row of which array each is."""
    each = [node.results for node in nodes]
    counts = [len(results.calls) for results in each]
    first = repeat([node.leaf for node in nodes], counts)
    if any([results.firsts is not None for results in each]):
        shifts = [results.firsts or [0] * len(results.calls) for results in each]
        first = first + np.array([shift for of_node in shifts for shift in of_node])
    source = {home: k for k, home in enumerate(_homes(nodes))}
    spaces: list[Earlier] = []
    rows, of = np.empty_like(first), np.empty_like(first)
    for table, (terms, rows_there) in rows_by_table(nodes).items():
        for run, value, chosen in by_run_and_value(table, table.run_of[rows_there], first[terms]):
            node, rows_of_run = table.runs[run]
            of[terms[chosen]] = len(spaces)
            spaces.append(Earlier(source[node], rows_of_run, value))
        rows[terms] = table.position[rows_there]
    return spaces, GatherTable(rows, of)


def stack(results: Sequence[Returned], like: object = None) -> Returned:
    """Results of several calls as rows: one node and one gather for each part.

    Args:
        results: K results of one form: vectors, scalars, or tuples of them.
        like:    an example of a result, used if there is none: a vector, or a tuple of vectors.
                 The first state of a loop, say, for sentences without tokens; see `initial_state`.

    Returns:
        in the structure of one result, matrices (K, D) for vectors and vectors (K,) for scalars. A
        part that nothing reads costs nothing. Of no results (0, D), if `like` says what D is.

    Raises:
        EmptyBatchError: `results` is empty, and there is no `like`.
        ShapeError:      the forms differ, or `like` is not a vector.
        GraphError:      the graphs differ.
        ArgumentError:   `results` is not a list.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> @db.cell
        ... def twice(x):
        ...     return x + x, x * x
        >>> with db.Graph() as graph:
        ...     doubled, squared = db.stack([twice(F.input(graph, [k])) for k in (1.0, 3.0)])
        ...     doubled.value.tolist(), squared.value.tolist()
        ([[2.0], [6.0]], [[1.0], [9.0]])
    """
    fix = "give what the calls returned, db.stack([h1, h2])"
    rows: Any = (
        results
        if isinstance(results, Results) and results.form_id != NO_FORM
        else listed("stack", "results", results, fix)
    )
    if not rows and like is not None:
        return by_part(_no_rows, [structure_of(like)])  # type: ignore[no-any-return]
    if not rows:
        raise EmptyBatchError.at_caller(
            "stack: the list of results is empty.\n"
            "  rule: the width of an empty stack is unknown, unless `like` gives an example\n"
            "  fix:  db.stack(states, like=h), with the first state h = db.initial_state(graph, 64)"
        )
    if not (isinstance(rows, Results) or are_results(rows)):
        parts = [structure_of(result) for result in rows]
        return by_part(stack_nodes, parts)  # type: ignore[no-any-return]
    form = rows.form if isinstance(rows, Results) else common_form("stack", rows)
    stacked = (rows if isinstance(rows, Results) else Results.of(rows)).located()
    nodes = [StackCalls(stacked, leaf) for leaf in range(len(leaves(form)))]
    return build(form, iter(nodes))  # type: ignore[return-value]


def _no_rows(like: Sequence[object]) -> Node:
    """A matrix (0, D) for a vector (D,)."""
    (vector,) = like
    if not isinstance(vector, Node) or vector.ndim != 1:
        raise ShapeError.at_caller(
            f"stack: like={vector!r} is not a vector.\n"
            "  rule: without results stack makes (0, D), for a vector (D,) of the graph\n"
            "  fix:  like=h, with h = db.initial_state(graph, 64); numbers make no empty vector"
        )
    return constant(vector.graph, 0.0, (0, vector.width))


FUNCTIONS["stack_calls"] = stack
