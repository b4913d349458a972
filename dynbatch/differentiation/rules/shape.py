"""Rules of what moves elements without arithmetic."""

from __future__ import annotations

import itertools

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.repeated import folded, rows_of
from dynbatch.differentiation.table import Made, rule
from dynbatch.nodes.node import WIDTH, Node
from dynbatch.nodes.shape.expand import Expand, ExpandToLength, Repeated
from dynbatch.nodes.shape.gather import GatherRows, Transpose
from dynbatch.nodes.shape.join import Concat
from dynbatch.nodes.shape.permute import Permute
from dynbatch.nodes.shape.reshape import Reshape
from dynbatch.nodes.shape.row import Row
from dynbatch.nodes.shape.scatter import ScatterRows, scattered
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.shape.structure import Reverse


def reshaped(dy: Node, x: Node) -> Node:
    """The elements of dy in the shape of x, with a width that is a length where that of x is."""
    if dy.shape == x.shape and dy.ragged == x.ragged:
        return dy
    return Reshape(dy, target=x.shape, lengths=x.ragged)


@rule(Reshape)
def _reshape(y: Reshape, dy: Node) -> tuple[Made, ...]:
    return (lambda: reshaped(dy, y.inputs[0]),)


@rule(Transpose)
def _transpose(y: Transpose, dy: Node) -> tuple[Made, ...]:
    return (lambda: F.transpose(dy),)


@rule(Permute)
def _permute(y: Permute, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    n, a, b, r = y.groups
    is_length = bool(x.ragged & WIDTH)
    return (
        lambda: Permute(
            dy, groups=(n, b, a, r), inner=y.inner, is_length=is_length, target=x.shape
        ),
    )


@rule(Expand, ExpandToLength)
def _expand(y: Repeated, dy: Node) -> tuple[Made, ...]:
    return (lambda: folded(dy, y.inputs[0]),)


@rule(Reverse)
def _reverse(y: Reverse, dy: Node) -> tuple[Made, ...]:
    return (lambda: F.reverse(dy),)


@rule(GatherRows)
def _gather_rows(y: GatherRows, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: reshaped(scattered(dy, y.ids, x.rows), x),)


@rule(ScatterRows)
def _scatter_rows(y: ScatterRows, dy: Node) -> tuple[Made, ...]:
    return (lambda: reshaped(F.gather_rows(dy, y.ids), y.inputs[0]),)


@rule(Slice, Row)
def _slice(y: Slice, dy: Node) -> tuple[Made, ...]:
    def amid_zeros() -> Node:
        (x,) = y.inputs
        rows, columns = y.taken
        padded = dy
        if len(columns) < x.width:
            leading = dy.shape[:-1]
            before, behind = columns.start, x.width - columns.stop
            sizes = [size for size in (before, -1, behind) if size]
            parts = [
                dy if size < 0 else F.constant(y.graph, 0.0, (*leading, size)) for size in sizes
            ]
            padded = F.concat(parts)
        elif not padded.ndim:  # one feature of one
            padded = F.unsqueeze(padded, 0)
        if x.ndim == 2 and list(rows) != list(range(x.rows)):
            cut = rows_of(padded) if padded.ndim > 2 else padded
            padded = scattered(cut, np.array(rows, np.int64), x.rows)
        return padded if padded.shape == x.shape else reshaped(padded, x)

    return (amid_zeros,)


@rule(Concat)
def _concat(y: Concat, dy: Node) -> tuple[Made, ...]:
    by_rows = y.along == 0
    matrix = dy if dy.ndim < 3 else F.reshape(dy, (dy.rows, dy.width))
    sizes = [x.rows if by_rows else x.width for x in y.inputs]
    ends = list(itertools.accumulate(sizes, initial=0))

    def part(x: Node, start: int, stop: int) -> Node:
        key = slice(start, stop)
        if by_rows:
            piece = Slice(matrix, tokens=key if x.ndim > 1 else start, features=None)
        else:
            piece = Slice(matrix, tokens=None, features=key if x.ndim else start)
        return piece if piece.shape == x.shape else reshaped(piece, x)

    places = zip(y.inputs, ends[:-1], ends[1:], strict=True)
    return tuple([lambda x=x, i=i, j=j: part(x, i, j) for x, i, j in places])
