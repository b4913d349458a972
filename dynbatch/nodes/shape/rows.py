"""The rows of several values as one matrix, and back: what a norm over a mini-batch reads."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.join import Concat
from dynbatch.nodes.shape.row import SLICE
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.signature import intern_signature

CONCAT = intern_signature((Concat, 0))


def joined_rows(xs: Sequence[Node]) -> Node:
    """All rows of values (…, D), one after the other: a matrix (N, D).

    It is `concat(dim=0)` of the values as matrices, without a node for each of these: rows lie in
    memory alike, whatever the dimensions before the last.

    Args:
        xs: one value or more, of one width.
    """
    node = Concat.__new__(Concat)
    node.along = 0
    rows = ragged = 0
    for x in xs:
        rows += x.rows
        ragged |= x.ragged
    node.complete_as(tuple(xs), xs[0].graph, 2, rows, xs[0].width, ragged, CONCAT)
    return node


def divided_rows(matrix: Node, like: Sequence[Node]) -> list[Node]:
    """The rows of a matrix (N, D) as values of the shapes of others, which have N together."""
    parts: list[Node] = []
    width, start = range(matrix.width), 0
    for x in like:
        part = Slice.__new__(Slice)
        rows = range(start, start + x.rows)
        part.tokens, part.features, part.taken = slice(start, rows.stop, 1), None, (rows, width)
        if x.ndim > 2:
            part._leading = x._leading
        part.complete_as((matrix,), x.graph, x.ndim, x.rows, matrix.width, x.ragged, SLICE)
        parts.append(part)
        start = rows.stop
    return parts
