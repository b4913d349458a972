"""`plain_scan`: a scan as nodes of its cell's steps, where gradients are to be nodes as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.cells.scan.arguments import Part, shape_of
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.trace import run_traced
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.join import concat
from dynbatch.nodes.shape.reshape import unsqueeze
from dynbatch.nodes.shape.row import row_of
from dynbatch.nodes.sources import constant


def plain_scan(
    function: Any, compiled: CompiledCell, xs: object, sentences: Sequence[Node],
    init: tuple[Sequence[Part], bool], params: object, memories: Sequence[Node],
    reverse: bool,
) -> tuple[Node, Any]:  # fmt: skip
    """The outputs (T, E) and the last state of a cell's function, called token by token.

    Args:
        function:  of the cell.
        compiled:  the cell for these arguments, which has checked them.
        sentences: `xs` as a tuple.
        init:      the parts of the first state, and whether it is a single value.
    """
    graph, rows = sentences[0].graph, sentences[0].rows
    parts, single = init
    state: Any = tuple(
        [p if isinstance(p, Node) else constant(graph, 0.0, shape_of(p)) for p in parts]
    )
    state = state[0] if single else state
    memory = list(memories) if len(memories) < 2 else [tuple(memories)]
    outputs: list[Node] = []
    for t in reversed(range(rows)) if reverse else range(rows):
        tokens = tuple([row_of(x, t) for x in sentences])
        x = tokens if isinstance(xs, tuple) else tokens[0]
        returned: Any = run_traced(function, [x, state, params, *memory], params, graph)
        y, state = returned
        outputs.append(y if y.ndim == 2 else unsqueeze(y, 0))
    if not outputs:
        return constant(graph, 0.0, (0, compiled.trace.output.width)), state
    return concat(outputs[:: -1 if reverse else 1], dim=0), state
