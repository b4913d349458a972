"""Calls made together: rows of a table, each of which is a node once somebody asks for it.

They are the calls that a loop would make, in its order: their nodes have the same numbers (but see
`sum_tree`), and run in the same batches. A tree enters its table as a few lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from dynbatch.cells.calls.arguments import NodeArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.forms import NO_FORM, leaves
from dynbatch.cells.calls.results import Results, SumArgument, are_results, total
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallGraph, CallTable, indices_in, number_of
from dynbatch.errors import DynbatchError, ShapeError
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row, light_row
from dynbatch.nodes.stream import RandomStreams, key_of


class Children(NamedTuple):
    """The children of a tree's inner nodes, (K, N).

    columns: N times K numbers of states.
    heights: of each inner node, the longest chain of other inner nodes that it waits for.
    """

    columns: Sequence[Sequence[int]]
    heights: list[int]


NO_CHILDREN = Children((), [])
_HAVE_FORMS = frozenset((Results, Call, ResultPart, TuplePart, Row, SumArgument))


class LateRows(NamedTuple):
    """Consecutive rows of a table, the calls of which are nodes once somebody asks for them.

    matrices: the columns of these rows that are rows of a matrix, for each of which a call takes
        one number of a node more.
    starts:   of each call the first of its numbers of nodes.
    """

    table: CallTable
    first: int
    matrices: Sequence[list[Any]]
    starts: Sequence[int]

    def index_of(self, row: int) -> int:
        """The number of the node that the call in a row is."""
        return self.starts[row - self.first] + len(self.matrices)

    def begin_keys(self, streams: RandomStreams) -> tuple[list[list[Any]], list[str], int]:
        """The columns that differ, the texts before theirs, and a hash of what a key begins with.

        Rows of one matrix have one key. Columns of them come first, as a rule.
        """
        table, read = self.table, list[int]()
        columns = table.columns
        while len(read) < len(columns):
            column = columns[len(read)]
            if not any([column is matrix for matrix in self.matrices]):
                break
            read.append(_key_of_value(column[self.first], table.graph, streams))
        start = crc32(table.cell.__name__.encode())
        begin = f"{Call.stream_name}[{', '.join(map(str, read))}".encode()
        return columns[len(read) :], [""] if read else [], crc32(begin, start)


class LateCalls:
    """A stand-in for the calls in some rows until they are nodes.

    Args:
        made_at_once: the numbers of these calls, and of those made with them (see `sum_tree`), in
            order of creation, and the rows that all of these are in.
    """

    __slots__ = ("made_at_once", "ready", "rows")

    def __init__(
        self, rows: LateRows, ready: int, made_at_once: tuple[Sequence[int], Sequence[LateRows]]
    ) -> None:
        self.rows = rows
        self.ready = ready
        self.made_at_once = made_at_once

    def append(
        self,
        entries: Iterable[tuple[list[Any], Iterable[Any]]],
        depths: Sequence[int],
        late: Sequence[LateCalls],
    ) -> None:
        """Enter them in the table, column by column, and what is late among the nodes."""
        table, count = self.rows.table, len(depths)
        table.is_late = True
        for column, arguments in entries:
            column.extend(arguments)
        table.phases.extend([self.ready] * count)
        table.depths.extend(depths)
        table.nodes.extend(late)
        table.calls.extend([self] * count)

    def index(self, row: int) -> int:
        """The number of the node that the call in a row is."""
        return self.rows.index_of(row)

    def enter_keys(self, streams: RandomStreams) -> None:
        """Enter the keys that the calls would have as nodes; see `nodes.stream`."""
        numbers, parts = self.made_at_once
        keys, graph = streams.keys, self.rows.table.graph
        if parts[-1].starts[-1] + len(parts[-1].matrices) in keys:  # which is entered last
            return
        begun = {rows.table.number: rows.begin_keys(streams) for rows in parts if rows.starts}
        for number in numbers:
            columns, texts, start = begun[number >> ROW_BITS]
            if columns:
                row, texts = number & ROW, texts.copy()
                for column in columns:
                    x = column[row]
                    if type(x) is int:
                        texts.append(f"{keys.get(x) or _key_of_value(x, graph, streams)}")
                    elif type(x) is SumArgument and type(x.members) is Results:  # of edges before
                        texts += [f"{keys[call]}" for call in x.members.values]
                    else:
                        texts += [f"{streams.key(index)}" for index in indices_in(x, graph)]
            keys[number] = crc32(f"{', '.join(texts)}]".encode(), start)  # as in `key_of`
        for rows in parts:
            first = rows.table.number << ROW_BITS | rows.first
            for number, begin in enumerate(rows.starts, first):
                keys[begin + len(rows.matrices)] = keys[number]

    def make(self, row: int) -> Call:
        """Make the node of the call in a row, and before it those of its rows of matrices."""
        table, first, matrices, starts = self.rows
        index = starts[row - first]
        for column in matrices:
            number = column[row]
            if type(number) is int:  # not a node made before an interrupt
                node = light_row(table.graph.origins[number >> ROW_BITS], number & ROW)
                node.index, table.nodes[index], column[row] = index, node, node
            index += 1
        call = Call()
        call.origin, call.form_id, call.depth = table, table.form_id, table.depths[row]
        call.ready, call.row, call.index = self.ready, row, index
        table.calls[row] = table.nodes[index] = call
        return call


def _key_of_value(value: Any, graph: CallGraph, streams: RandomStreams) -> int:
    """The key of a row of a matrix or of a call, as a node or by its number; see `CallGraph`."""
    if isinstance(value, Node):
        return streams.key(value.index)
    origin, row = graph.origins[value >> ROW_BITS], value & ROW
    if isinstance(origin, Node):
        return key_of(Row.stream_name, [streams.key(origin.index)])
    return streams.key(origin.index_of(row))


def together(
    make: Callable[..., Any],
    tables: Mapping[tuple[int, ...], CallTable],
    what: str,
    arguments: Sequence[Any],
    states: Sequence[Any] = (),
    children: Children = NO_CHILDREN,
) -> Sequence[Any]:
    """The states, and after them what calls return that are given rows of the arguments.

    Args:
        make:     makes one call of its arguments.
        tables:   of the cell's calls, by the forms of their arguments and its parameters.
        children: the states that each call is given before these.
    """
    columns, values, keys = children.columns, [], []
    counts = {*map(len, columns)}
    for x in arguments:
        if isinstance(x, Node) and x.ndim == 2 and not isinstance(x, Call):
            x = Results.of_matrix(x)
        if type(x) is Results:
            counts.add(len(x.values))
        values.append(x)
        keys.append(x.form_id if type(x) in _HAVE_FORMS else id(x))
    if len(counts) != 1:
        raise _uneven(what, sorted(counts))
    (count,) = counts
    if not count:
        return Results.of_nodes([], next(x.graph for x in values if type(x) is Results))
    if type(states) is not Results and are_results(states):
        if len({state.form_id for state in states}) == 1:  # else they are of different graphs, say
            states = Results.of(states)
    form_ids = [states.form_id if type(states) is Results else NO_FORM] * len(columns)

    def call(k: int, states: Sequence[Any]) -> Any:
        rows = [x[k] if type(x) is Results else x for x in values]
        return make(*[states[numbers[k]] for numbers in columns], *rows)

    table, made = tables.get((*form_ids, *keys)), []
    if table is None:  # the first call makes one, if there can be one
        made = [call(0, states)]
        table = made[0].origin if type(made[0]) is Call else None
    is_nodes = NO_FORM in [x.form_id for x in values if type(x) is Results]
    if table is None or is_nodes or form_ids != [table.form_id] * len(columns):
        results = [*states, *made]  # each by itself: they are not rows of one table
        for k in range(len(made), count):
            results.append(call(k, results))
        return Results.of_nodes(results, leaves(results[-1])[0].graph)
    if table.params_at is not None:
        del values[table.params_at - len(columns)]
    if made:  # what is no row is entered as the first call was given it
        entered = zip(values, table.columns[len(columns) :], strict=True)
        values = [x if type(x) is Results else column[-1] for x, column in entered]
    known = states if type(states) is Results else Results(table.graph, (), 0, NO_FORM, ())
    return _enter(table, values, known, children, count, len(made))


def _enter(
    table: CallTable,
    values: Sequence[Any],
    states: Results,
    children: Children,
    count: int,
    made: int,
) -> Results:
    """Enter calls in their table, column by column; the first `made` of them are its last rows.

    There are appends alone, as when a call is made by itself: see `calls.maker`.

    Returns:
        the states, and what the calls return.
    """
    ready, waits = states.ready, table in states.tables
    for x in values:
        ready = max(ready, x.ready)
        waits = waits or (bool(x.tables) if type(x) is Results else type(x) is not NodeArgument)
    depths = children.heights or [0] * count
    if waits:  # for calls of the same table, perhaps
        depths = _depths(table, states, children, values, count)
    first, missing = table.number << ROW_BITS | len(table.calls) - made, count - made
    results = [*states.values, *range(first, first + count)]
    entries: list[Any] = [map(results.__getitem__, numbers[made:]) for numbers in children.columns]
    matrices = []
    for x in values:
        is_row = type(x) is Results
        if is_row and x.are_of_matrix:
            matrices.append(table.columns[len(entries)])
        entries.append(x.values[made:] if is_row else [x] * missing)
    numbers = 1 + len(matrices)  # of nodes, for each call
    begin = len(table.nodes)
    starts = range(begin, begin + missing * numbers, numbers)
    rows = LateRows(table, len(table.calls), matrices, starts)
    late = LateCalls(rows, ready, (range(first + made, first + count), [rows]))
    late.append(zip(table.columns, entries, strict=True), depths[made:], [late] * numbers * missing)
    return Results(table.graph, results, ready, table.form_id, (*states.tables, table))


def sum_tree(
    cell: Any, edge: Any, order: Sequence[int], children: Sequence[Sequence[int]], init: Any,
    xs: Any, params: object,
) -> Sequence[Any]:  # fmt: skip
    """The states of a tree's nodes, each of which has any number of children.

        state[k] = cell(x[k], Σ edge(x[k], state[c], params) over its children c, params)

    Calls are those of a loop over the nodes in order. A graph's first tree makes them one by one,
    and with them the tables that those of later trees enter at once, each with a row of its own.

    Args:
        order:    the nodes, children first.
        children: of each node.
        init:     the widths of zeros, which the empty sum is.
        xs:       a matrix, a row for each node.
    """
    states: list[Any] = [None] * len(order)
    tables = None if xs.graph.is_trace else _known_tables(cell, edge, init, xs, params)
    if tables is None:
        for node in order:
            x = xs[node]
            taken = [edge(x, states[child], params) for child in children[node]]
            states[node] = cell(x, total(taken) if taken else init, params)
        return states
    table, edges = tables
    graph, rows, zeros = table.graph, Results.of_matrix(xs), NodeArgument(None, edges.form_id)
    number, edge = [each.number << ROW_BITS | len(each.calls) for each in tables]
    for k, node in enumerate(order, number):
        states[node] = k
    # In the loop's order, but each call has a row of x to itself: for each edge a row and a call,
    # then for the node.
    first_row, index, depths = rows.values[0], len(table.nodes), {edges: 0}
    below: list[Any] = []  # the sums of the nodes
    parents: list[int] = []  # and both ends of the edges
    read: list[int] = []
    numbers: list[int] = []
    starts: list[int] = []
    edge_starts: list[int] = []
    for node in order:
        joined = children[node]
        end = edge + len(joined)
        if len(joined) > 1:
            terms = Results(graph, range(edge, end), rows.ready, edges.form_id, (edges,))
            below.append(SumArgument.of_late(terms, edges.form, depths))
        else:
            below.append(edge if joined else zeros)
        for child in joined:
            parents.append(first_row + node)
            read.append(states[child])
            numbers.append(edge)
            edge_starts.append(index)
            edge, index = edge + 1, index + 2
        numbers.append(number)
        starts.append(index)
        number, index = number + 1, index + 2
    late_rows = [
        LateRows(each, len(each.calls), each.columns[:1], indices)
        for each, indices in ((edges, edge_starts), (table, starts))
    ]
    of_edges, of_nodes = [LateCalls(r, rows.ready, (numbers, late_rows)) for r in late_rows]
    # Appends alone (see `calls.maker`), of which the first and the last are to one table: so an
    # interrupt between any of them is noticed there.
    table.columns[0].extend([first_row + node for node in order])
    edges.columns[0].extend(parents)
    of_edges.append([(edges.columns[1], read)], [0] * len(read), [])
    late = [of_nodes] * (2 * len(numbers))
    of_nodes.append([(table.columns[1], below)], [0] * len(below), late)
    return Results(graph, states, rows.ready, table.form_id, (table,))


def _known_tables(
    cell: Any, edge: Any, init: Any, xs: Any, params: object
) -> tuple[CallTable, CallTable] | None:
    """The tables of a tree's calls, and of those of its edges, if calls were made in both."""
    form_ids = xs.graph.form_ids
    table = cell.call_tables.get((form_ids[xs.width], form_ids[init], id(params)))
    edges = table and edge.call_tables.get((form_ids[xs.width], table.form_id, id(params)))
    return (table, edges) if edges and edges.form_id == form_ids[init] else None


def _depths(
    table: CallTable, states: Results, children: Children, values: Sequence[Any], count: int
) -> list[int]:
    """For each call, the longest chain of the table's calls that it waits for."""
    floors = [-1] * count
    for x in values:
        if type(x) is Results:
            floors = [*map(max, floors, _heights(table, x))]
            continue
        depth = x.depth if x.origin is table else -1
        if x.origin is None and x.depths:
            depth = x.depths.get(table, -1)
        floors = [max(floor, depth) for floor in floors]
    heights = _heights(table, states)
    if not children.columns:
        return [floor + 1 for floor in floors]
    for floor, joined in zip(floors, zip(*children.columns, strict=True), strict=True):
        heights.append(max(floor, *map(heights.__getitem__, joined)) + 1)
    return heights[len(states) :]


def _heights(table: CallTable, results: Results) -> list[int]:
    """The depth of each result that is of the table; -1 of others."""
    first, depths = table.number << ROW_BITS, table.depths
    rows = [number_of(x, table.graph) - first for x in results.values]
    return [depths[row] if 0 <= row <= ROW else -1 for row in rows]


def children_of(what: str, children: Any, num_leaves: int) -> Children:
    """The children of a tree's inner nodes.

    Raises:
        ShapeError: they are no integers (K, N), or one of them is no earlier node.
    """
    heights = [-1] * num_leaves
    try:
        children = children.tolist() if isinstance(children, np.ndarray) else [*children]
        columns: list[Sequence[int]] = [*zip(*children, strict=True)]
        if len(columns) == 2:  # as most trees have: 0.1 µs a node in place of 0.3
            for left, right in zip(*columns, strict=True):
                below, other = heights[left], heights[right]
                heights.append((below if below > other else other) + 1)
        else:
            for joined in zip(*columns, strict=True):
                heights.append(max(map(heights.__getitem__, joined)) + 1)
        if all([min(numbers) >= 0 for numbers in columns]) and (columns or not children):
            return Children(columns, heights[num_leaves:])
    except (IndexError, TypeError, ValueError):
        pass
    raise _wrong_children(what, children, num_leaves)


def _wrong_children(what: str, children: Any, num_leaves: int) -> ShapeError:
    rule = "  rule: inner node k makes state T + k from N of those before it, the first T of leaves"
    try:
        rows = [as_ids(what, row).tolist() for row in children]
    except (DynbatchError, TypeError):
        rows = [[], [0]]
    if len({*map(len, rows)}) > 1 or not any(rows):
        return ShapeError.at_caller(
            f"{what}: the children are not (K, N) integers.\n{rule}\n"
            "  fix:  give N states for each inner node, [(0, 1), (3, 2)]; where their number\n"
            "        differs, call the cell node by node"
        )
    k, child = next(
        (k, child) for k, row in enumerate(rows) for child in row if not 0 <= child < num_leaves + k
    )
    return ShapeError.at_caller(
        f"{what}: inner node {k}, which makes state {num_leaves + k}, is given state {child}.\n"
        f"{rule}\n  fix:  list inner nodes bottom-up, and count from 0"
    )


def _uneven(what: str, counts: Sequence[int]) -> ShapeError:
    problem = f"arguments of {' and '.join(map(str, counts))} rows" if counts else "no rows"
    return ShapeError.at_caller(
        f"{what}: {problem}.\n"
        "  rule: a call for each row of a matrix, or result of other such calls\n"
        f"  fix:  {'give as many rows of each' if counts else 'call the cell itself, once'}"
    )
