"""Rules of choices by a mask, and of dropout."""

from __future__ import annotations

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made, rule
from dynbatch.errors import GraphError
from dynbatch.nodes.dropout import InvertedDropout
from dynbatch.nodes.node import Node
from dynbatch.nodes.selection import Where


def equals(a: Node, b: Node) -> Node:
    """1 where a and b are equal or both NaN, else 0: where an extremum b of a's may come from."""
    return F.equal(a, b) + F.not_equal(a, a) * F.not_equal(b, b)


@rule(Where)
def _where(y: Where, dy: Node) -> tuple[Made, ...]:
    mask = y.inputs[0]
    return None, lambda: F.where(mask, dy, 0.0), lambda: F.where(mask, 0.0, dy)


@rule(InvertedDropout)
def _dropout(y: InvertedDropout, dy: Node) -> tuple[Made, ...]:
    y.require(
        not y.graph.is_trace,
        "the gradient of dropout inside a block or a cell",
        "a trace gives each dropout a mask of its own, and this one needs that of the value",
        "take the gradient outside of @db.block and @db.cell",
        GraphError,
    )
    return (lambda: InvertedDropout(dy, p=y.p, stream=y.stream),)
