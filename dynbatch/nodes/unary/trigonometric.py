"""Trigonometric and hyperbolic functions, their inverses, and the error function."""

from __future__ import annotations

from dynbatch.kernels.unary import trigonometric
from dynbatch.nodes.node import Node
from dynbatch.nodes.unary.node_types import NODE_TYPES


def sin(x: Node) -> Node:
    """Sine of x, in radians."""
    return NODE_TYPES[trigonometric.sin](x)


def cos(x: Node) -> Node:
    """Cosine of x, in radians."""
    return NODE_TYPES[trigonometric.cos](x)


def tan(x: Node) -> Node:
    """Tangent of x, in radians."""
    return NODE_TYPES[trigonometric.tan](x)


def asin(x: Node) -> Node:
    """The angle from -π/2 to π/2 whose sine is x; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.asin](x)


def acos(x: Node) -> Node:
    """The angle from 0 to π whose cosine is x; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.acos](x)


def atan(x: Node) -> Node:
    """The angle from -π/2 to π/2 whose tangent is x."""
    return NODE_TYPES[trigonometric.atan](x)


def sinh(x: Node) -> Node:
    """Hyperbolic sine, (exp(x) - exp(-x)) / 2."""
    return NODE_TYPES[trigonometric.sinh](x)


def cosh(x: Node) -> Node:
    """Hyperbolic cosine, (exp(x) + exp(-x)) / 2."""
    return NODE_TYPES[trigonometric.cosh](x)


def asinh(x: Node) -> Node:
    """Inverse hyperbolic sine."""
    return NODE_TYPES[trigonometric.asinh](x)


def acosh(x: Node) -> Node:
    """Inverse hyperbolic cosine; NaN below 1."""
    return NODE_TYPES[trigonometric.acosh](x)


def atanh(x: Node) -> Node:
    """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""
    return NODE_TYPES[trigonometric.atanh](x)


def erf(x: Node) -> Node:
    """The error function, 2/√π times the integral of exp(-t²) for t from 0 to x.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph(dtype="float64") as graph:
        ...     x = F.input(graph, [-1.0, 0.0, 1.0])
        ...     (0.5 + 0.5 * F.erf(x / 2**0.5)).value.round(3).tolist()  # the normal distribution
        [0.159, 0.5, 0.841]
    """
    return NODE_TYPES[trigonometric.erf](x)
