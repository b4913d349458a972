"""Comparisons, elementwise maximum and minimum of two values, and choice by a mask.

A comparison is 1 where it holds and 0 elsewhere, so it can be multiplied and summed; it passes no
gradient on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.errors import DtypeError
from dynbatch.kernels import arrays
from dynbatch.kernels import binary as kernels
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.nodes.arithmetic import Binary, WithNumber, beside, combined, number_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Elementwise, Retain
from dynbatch.nodes.shape.expand import matched
from dynbatch.nodes.sources import constant, input
from dynbatch.ragged import Ragged


class Maximum(Binary):
    """The greater of a and b, NaN if either is; equal ones get half of the gradient each."""

    __slots__ = ()
    kernel = kernels.maximum


class Minimum(Binary):
    """The smaller of a and b, NaN if either is; equal ones get half of the gradient each."""

    __slots__ = ()
    kernel = kernels.minimum


class MaximumWithNumber(WithNumber):
    """The greater of x and a number; the gradient is halved where they are equal."""

    __slots__ = ()
    retains = Retain(inputs=True)
    kernel = kernels.maximum


class MinimumWithNumber(WithNumber):
    """The smaller of x and a number; the gradient is halved where they are equal."""

    __slots__ = ()
    retains = Retain(inputs=True)
    kernel = kernels.minimum


class Where(Elementwise):
    """y = a where the mask is not 0, else b.

    The gradient goes to the side that was chosen; the other one gets exactly 0, whatever it holds.

    Batches with:  every other Where, whatever the shapes.
    """

    __slots__ = ()
    shape_rule = "mask (…), a (…), b (…) -> (…)"
    shape_fix = "use F.expand, or F.where, which repeats a vector over the tokens"
    retains = Retain(inputs=(0,))

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        kernels.where(xs[0].flat, xs[1].flat, xs[2].flat, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        mask = batch.input(0).flat
        if dxs[0] is not None:
            arrays.fill(dxs[0].flat, 0)
        for side, dx in enumerate(dxs[1:]):
            if dx is not None:
                kernels.where_backward(dy.flat, mask, dx.flat, side)


_Relation = tuple[type[Binary], type[WithNumber], type[WithNumber]]
"""The node types for two nodes, a node and a number, and a number and a node."""


def _comparison(kernel: Pair, sign: str, *names: str) -> _Relation:
    """Make the node types of a comparison, which is 1 where it holds and else 0.

    Without a third name the comparison is the same with its sides exchanged.
    """
    types: list[type[Any]] = []
    sides = (("a", "b", Binary), ("x", "number", WithNumber), ("number", "x", WithNumber))
    for name, (left, right, base) in zip(names, sides, strict=False):
        body = {"__slots__": (), "__module__": __name__, "differentiable": False, "kernel": kernel}
        body["__doc__"] = f"1 where {left} {sign} {right}, else 0; no gradient passes."
        types.append(type(name, (base,), body | ({"side": 1} if len(types) == 2 else {})))
    globals().update({node_type.__name__: node_type for node_type in types})
    return types[0], types[1], types[-1]


_GREATER = _comparison(kernels.greater, ">", "Greater", "IsGreater", "IsLess")
_GREATER_EQUAL = _comparison(
    kernels.greater_equal, ">=", "GreaterEqual", "IsGreaterEqual", "IsLessEqual"
)
_EQUAL = _comparison(kernels.equal, "==", "Equal", "IsEqual")
_NOT_EQUAL = _comparison(kernels.not_equal, "!=", "NotEqual", "IsNotEqual")
_MAXIMUM: _Relation = (Maximum, MaximumWithNumber, MaximumWithNumber)
_MINIMUM: _Relation = (Minimum, MinimumWithNumber, MinimumWithNumber)


def _related(types: _Relation, a: Any, b: Any) -> Node:
    a, b = beside(b, a), beside(a, b)
    if not isinstance(b, Node):
        return types[1](a, number=number_of(b))
    if not isinstance(a, Node):
        return types[2](b, number=number_of(a))
    return combined(types[0], a, b)


def maximum(a: Any, b: Any) -> Node:
    """The greater of two nodes, or of a node and a parameter or number, as `torch.maximum`.

    NaN if either is. Where they are equal each gets half of the gradient.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.maximum(F.input(graph, [-1.0, 2.0]), 0).value.tolist()
        [0.0, 2.0]
    """
    return _related(_MAXIMUM, a, b)


def minimum(a: Any, b: Any) -> Node:
    """The smaller of two nodes, or of a node and a parameter or number, as `torch.minimum`.

    NaN if either is. Where they are equal each gets half of the gradient.
    """
    return _related(_MINIMUM, a, b)


def greater(a: Any, b: Any) -> Node:
    """1 where a > b, else 0, of two nodes, or a node and a parameter or number; no gradient.

    `>`, `>=`, `<` and `<=` between nodes are these functions; `==` is not: see `equal`.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [-1.0, 2.0])
        ...     F.greater(x, 0).value.tolist(), (x * (x > 0)).value.tolist()
        ([0.0, 1.0], [-0.0, 2.0])
    """
    return _related(_GREATER, a, b)


def greater_equal(a: Any, b: Any) -> Node:
    """1 where a >= b, else 0; as `greater`."""
    return _related(_GREATER_EQUAL, a, b)


def less(a: Any, b: Any) -> Node:
    """1 where a < b, else 0; as `greater`."""
    return _related(_GREATER, b, a)


def less_equal(a: Any, b: Any) -> Node:
    """1 where a <= b, else 0; as `greater`."""
    return _related(_GREATER_EQUAL, b, a)


def equal(a: Any, b: Any) -> Node:
    """1 where a == b, else 0; as `greater`. The operator `==` compares identity."""
    return _related(_EQUAL, a, b)


def not_equal(a: Any, b: Any) -> Node:
    """1 where a != b, else 0; as `greater`."""
    return _related(_NOT_EQUAL, a, b)


def where(mask: Any, a: Any, b: Any) -> Node:
    """a where the mask holds, else b, as `torch.where`.

    The gradient goes to the side that was chosen. The other side gets 0 even where its value or
    its derivative is NaN or infinite.

    Args:
        mask: a node, which holds where it is not 0 (a comparison, say); an array of booleans or
            numbers; or one boolean.
        a, b: nodes, parameters or numbers, repeated to one shape as by operators.

    Raises:
        ShapeError: the shapes do not fit.
        DtypeError: neither mask, a nor b is a node.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [-1.0, 4.0])
        ...     F.where(x > 0, F.sqrt(x), 0.0).value.tolist()
        [0.0, 2.0]
    """
    a, b = beside(b, a), beside(a, b)
    nodes = [x for x in (a, b, mask) if isinstance(x, Node)]
    if not nodes:
        raise DtypeError.at_caller(
            "where: at least one of mask, a and b must be a node.\n"
            "  fix:  F.input(graph, array) makes a node of an array"
        )
    first = nodes[0]
    if isinstance(mask, bool | np.bool):
        mask = constant(first.graph, float(mask))
    elif not isinstance(mask, Node):
        mask = input(first.graph, mask)
    return Where(*matched([mask, _as_node(first, a), _as_node(first, b)]))


def _as_node(beside_it: Node, value: Any) -> Node:
    value = beside(beside_it, value)
    return value if isinstance(value, Node) else constant(beside_it.graph, number_of(value))
