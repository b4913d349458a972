"""Rules of maxima and minima of two values, of choices by a mask, and of dropout."""

from __future__ import annotations

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made, rule
from dynbatch.errors import GraphError
from dynbatch.nodes.dropout import InvertedDropout
from dynbatch.nodes.node import Node
from dynbatch.nodes.selection import (
    Maximum,
    MaximumWithNumber,
    Minimum,
    MinimumWithNumber,
    Where,
)


def _share(dy: Node, chosen: Node, other: Node | float) -> Node:
    """0 where `chosen` is less than `other`, ½ dy where they are equal, else dy: NaN wins."""
    share = 1.0 - F.equal(chosen, other) * 0.5
    return F.where(F.less(chosen, other), 0.0, dy * share)


def equals(a: Node, b: Node) -> Node:
    """1 where a and b are equal or both NaN, else 0: where an extremum b of a's may come from."""
    return F.equal(a, b) + F.not_equal(a, a) * F.not_equal(b, b)


@rule(Maximum)
def _maximum(y: Maximum, dy: Node) -> tuple[Made, ...]:
    a, b = y.inputs
    return lambda: _share(dy, a, b), lambda: _share(dy, b, a)


@rule(Minimum)
def _minimum(y: Minimum, dy: Node) -> tuple[Made, ...]:
    a, b = y.inputs
    return lambda: _share(dy, b, a), lambda: _share(dy, a, b)


@rule(MaximumWithNumber)
def _maximum_with_number(y: MaximumWithNumber, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: _share(dy, x, y.number),)


@rule(MinimumWithNumber)
def _minimum_with_number(y: MinimumWithNumber, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: _share(dy, -x, -y.number),)


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
