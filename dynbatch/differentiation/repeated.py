"""A gradient repeated to a shape, or summed over what was repeated: each is the other's reverse."""

from __future__ import annotations

from dynbatch import nodes as F
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.expand import matched


def spread(dy: Node, x: Node) -> Node:
    """dy, a reduction of something like x, repeated to the shape of x.

    The width is a length where that of x is one, so that sentences still share a batch.
    """
    return matched([dy, x])[0]


def folded(dy: Node, x: Node) -> Node:
    """dy summed to the shape of x, which was repeated to that of dy."""
    if dy.shape == x.shape:
        return dy
    if x.ndim < 2 and x.width == 1:
        return F.reshape(F.sum(dy), x.shape)
    if x.ndim == 1:
        return sum_of_rows(dy)
    return F.sum(dy, dim=-1)


def rows_of(x: Node) -> Node:
    """x as a matrix with one row for all dimensions but the last."""
    if x.ndim == 2:
        return x
    return F.unsqueeze(x, 0) if x.ndim == 1 else F.reshape(x, (x.rows, x.width))


def sum_of_rows(x: Node) -> Node:
    return x if x.ndim == 1 else F.sum(rows_of(x), dim=0)
