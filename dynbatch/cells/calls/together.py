"""Calls made together: rows of a table, each of which is a node once somebody asks for it.

They are the calls that a loop would make, in its order: their nodes have the same numbers (but see
`sum_tree`), and run in the same batches. A tree enters its table as a few lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.cells.calls.arguments import NodeArgument
from dynbatch.cells.calls.call import Call, ResultPart, TuplePart
from dynbatch.cells.calls.forms import NO_FORM, leaves
from dynbatch.cells.calls.late import LateCalls, MadeTogether, Span
from dynbatch.cells.calls.results import Results, SumArgument, are_results, total
from dynbatch.cells.calls.sums import TreeSums
from dynbatch.cells.calls.table import ROW, ROW_BITS, CallTable, number_of
from dynbatch.errors import DynbatchError, ShapeError
from dynbatch.kernels.trees import Tree
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row


class Children(NamedTuple):
    """The children of a tree's inner nodes, (K, N).

    columns: N times K numbers of states.
    heights: of each inner node, the longest chain of other inner nodes that it waits for.
    """

    columns: Sequence[Sequence[int]]
    heights: list[int]


NO_CHILDREN = Children((), [])
_HAVE_FORMS = frozenset((Results, Call, ResultPart, TuplePart, Row, SumArgument))


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
    span = Span(table, len(table.calls), missing, matrices)
    late = LateCalls(span, ready, MadeTogether(len(table.nodes), [span]))
    nodes = [late] * (missing * (1 + len(matrices)))  # a call, and the rows it is given
    for column, arguments in zip(table.columns, entries, strict=True):
        column.extend(arguments)
    late.append(depths[made:], nodes)
    return Results(table.graph, results, ready, table.form_id, (*states.tables, table))


def sum_tree(cell: Any, edge: Any, tree: Tree, init: Any, xs: Any, params: object) -> Sequence[Any]:
    """The states of a tree's nodes, each of which has any number of children.

        state[k] = cell(x[k], Σ edge(x[k], state[c], params) over its children c, params)

    Calls are those of a loop over the nodes in the tree's order, each with a row of its own.

    Args:
        init: the widths of zeros, which the empty sum is.
        xs:   a matrix, a row for each node.
    """
    tables = _tables(cell, edge, init, xs, params)
    if tables is not None:
        return _enter_tree(*tables, tree, xs)
    states, begin = list[Any](), 0
    for node, end in zip(tree.order.tolist(), np.cumsum(tree.counts).tolist(), strict=True):
        x = xs[node]
        taken = [edge(x, states[k], params) for k in tree.children[begin:end].tolist()]
        states.append(cell(x, total(taken) if taken else init, params))
        begin = end
    return [states[k] for k in np.argsort(tree.order).tolist()]


def _tables(
    cell: Any, edge: Any, init: Any, xs: Any, params: object
) -> tuple[CallTable, CallTable] | None:
    """The tables of a tree's calls and of those of its edges, if both are nodes of their own."""
    if xs.graph.is_trace:
        return None
    table = cell.table_of((xs.width, init), params, xs.graph)
    edges = table and edge.table_of((xs.width, table.form), params, xs.graph)
    return (table, edges) if edges and edges.form_id == xs.graph.form_ids[init] else None


def _enter_tree(table: CallTable, edges: CallTable, tree: Tree, xs: Any) -> Results:
    """Enter the calls of a tree in their tables, column by column."""
    graph, ready, counts = table.graph, xs.phase + 1, tree.counts
    first_row = graph.number_of(xs) << ROW_BITS
    first = table.number << ROW_BITS | len(table.calls)
    if edges.sums is None:
        edges.sums = TreeSums(edges)
    first_sum = graph.number_of(edges.sums) << ROW_BITS | len(edges.sums.spans)
    spans = [
        Span(each, len(each.calls), size, each.columns[:1])
        for each, size in ((edges, tree.children.size), (table, counts.size))
    ]
    together = MadeTogether(len(table.nodes), spans, counts, -1 - tree.children)
    of_edges, of_nodes = [LateCalls(span, ready, together) for span in spans]
    # Appends alone (see `calls.maker`), of which the first and the last are to one table: so an
    # interrupt between any of them is noticed there.
    table.columns[0].enter(tree.order + first_row)
    edges.sums.enter(len(edges.calls), counts)
    edges.columns[0].enter(tree.parents + first_row)
    edges.columns[1].enter(tree.children + first)
    of_edges.append([0] * tree.children.size, [])
    table.columns[1].enter(np.arange(first_sum, first_sum + counts.size))
    of_nodes.append([0] * counts.size, [of_nodes] * (2 * (counts.size + tree.children.size)))
    states = np.empty_like(counts)
    states[tree.order] = np.arange(first, first + counts.size)
    return Results(graph, states.tolist(), ready, table.form_id, (table,))


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
