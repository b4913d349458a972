"""`stack`: results of many calls as rows of a matrix, with one gather per mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dynbatch.arguments import listed
from dynbatch.backend import Array
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.forms import Returned, build, leaves
from dynbatch.cells.calls.region import Earlier, by_run_and_value
from dynbatch.cells.calls.results import (
    Result,
    are_results,
    by_part,
    common_form,
    structure_of,
)
from dynbatch.cells.calls.table import CallTable
from dynbatch.errors import EmptyBatchError, ShapeError
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


class Stacked(NamedTuple):
    """Results of calls that are stacked, and where each is found.

    This is noted where they are stacked. Later their memory has left the cache, and to look at each
    once more takes several times as long.

    Attributes:
        origins, rows: of each, the table of its call, and the call's row there.
        firsts: of each, the first of the call's values that it is; None where each is a call.
        tables: the distinct ones, in order of first use.
        phase:  the first in which all of them are there.
        by_table: what `rows_by_table` gave last for nodes of which this one's came first, with the
            indices of these: they are asked for when a run is planned, and when it runs.
    """

    results: Sequence[Result]
    origins: list[CallTable]
    rows: list[int]
    firsts: list[int] | None
    tables: list[CallTable]
    phase: int
    by_table: list[tuple[list[int], dict[CallTable, tuple[Array, Array]]]]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Stacked:
        origins = [result.origin for result in results]
        are_calls = {*map(type, results)} == {Call}
        firsts = None if are_calls else [result.first for result in results]
        rows = [result.row for result in results]
        phase = max([result.ready for result in results])
        return cls(results, origins, rows, firsts, list(dict.fromkeys(origins)), phase, [])


class StackCalls(Operation):
    """One value of each of several calls, as rows of a matrix (K, D), or scalars as a vector (K,).

    Shape:  K calls, of (D,) each -> (K, D); of () -> (K,).
    Batches with:  every other StackCalls of its width.
    """

    __slots__ = ("leaf", "stacked")
    only_moves = True
    stacked: Stacked
    leaf: int

    def __init__(self, stacked: Stacked, leaf: int) -> None:
        results, first = stacked.results, stacked.results[0]
        width = first.origin.widths[first.first + leaf]
        self.graph = graph = first.origin.graph
        self.stacked = stacked
        self.leaf = leaf
        self.ndim = 2 if width else 1
        self.rows = len(results) if width else 1
        self.width = width or len(results)
        self.ragged = ROWS if width else ROWS | WIDTH
        self.sig = intern_signature((StackCalls, width))
        self.phase = stacked.phase
        self._block = None
        self.index = graph.add(self)

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return tuple([x if isinstance(x, Call) else x.call for x in self.results])

    @property
    def results(self) -> Sequence[Result]:
        return self.stacked.results

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
    for known, by_table in nodes[0].stacked.by_table if nodes else ():
        if known == indices:
            return by_table
    each = [node.stacked for node in nodes]
    tables = dict.fromkeys(chain.from_iterable([stacked.tables for stacked in each]))
    number = {table: k for k, table in enumerate(tables)}
    codes = map(number.__getitem__, chain.from_iterable([stacked.origins for stacked in each]))
    code = np.fromiter(codes, np.int64)
    rows = np.fromiter(chain.from_iterable([stacked.rows for stacked in each]), np.int64, code.size)
    terms = [np.flatnonzero(code == k) for k in range(len(tables))]
    by_table = {
        table: (of_table, rows[of_table]) for table, of_table in zip(tables, terms, strict=True)
    }
    if nodes:
        each[0].by_table[:] = [(indices, by_table)]
    return by_table


def _homes(nodes: Sequence[StackCalls]) -> list[Node]:
    """The regions that have run what the nodes stack."""
    tables = dict.fromkeys(chain.from_iterable([node.stacked.tables for node in nodes]))
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
    each = [node.stacked for node in nodes]
    counts = [len(stacked.rows) for stacked in each]
    first = np.repeat([node.leaf for node in nodes], counts)
    if any([stacked.firsts is not None for stacked in each]):
        shifts = [stacked.firsts or [0] * len(stacked.rows) for stacked in each]
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
    rows: Any = listed("stack", "results", results, fix)
    if not rows and like is not None:
        return by_part(_no_rows, [structure_of(like)])  # type: ignore[no-any-return]
    if not rows:
        raise EmptyBatchError.at_caller(
            "stack: the list of results is empty.\n"
            "  rule: the width of an empty stack is unknown, unless `like` gives an example\n"
            "  fix:  db.stack(states, like=h), with the first state h = db.initial_state(graph, 64)"
        )
    if not are_results(rows):
        parts = [structure_of(result) for result in rows]
        return by_part(stack_nodes, parts)  # type: ignore[no-any-return]
    form = common_form("stack", rows)
    stacked = Stacked.of(rows)
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
