"""Functions of one value: its sign and size, root, exponential and logarithm, bounds."""

from __future__ import annotations

import numpy as np

from dynbatch.kernels.unary import arithmetic
from dynbatch.nodes.node import Node
from dynbatch.nodes.syntax.registry import FUNCTIONS
from dynbatch.nodes.unary.node_types import NODE_TYPES, Abs, Detach, Negative, Sign


def negative(x: Node) -> Node:
    """-x."""
    return Negative(x)


def sqrt(x: Node) -> Node:
    """Square root."""
    return NODE_TYPES[arithmetic.sqrt](x)


def detach(x: Node) -> Node:
    """x without its gradient, as `torch.Tensor.detach`: nothing computed from it trains x.

    It makes no copy, except in a cell's loop, where it costs one pass. A kept one is a value of its
    own, whose gradient can be read.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [2.0, 3.0]).keep()
        ...     graph.backward(F.sum(x * F.detach(x)))
        ...     x.gradient.tolist()
        [2.0, 3.0]
    """
    return Detach(x)


def exp(x: Node) -> Node:
    """Exponential."""
    return NODE_TYPES[arithmetic.exp](x)


def log(x: Node) -> Node:
    """Natural logarithm."""
    return NODE_TYPES[arithmetic.log](x)


def abs(x: Node) -> Node:
    """Absolute value."""
    return Abs(x)


def clip(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """x cut off below `low` and above `high`; None leaves a side open."""
    return NODE_TYPES[arithmetic.clip](
        x,
        low=-np.inf if low is None else float(low),
        high=np.inf if high is None else float(high),
    )


def clamp(x: Node, min: float | None = None, max: float | None = None) -> Node:
    """`clip` with the arguments of `torch.clamp`."""
    return clip(x, min, max)


def sign(x: Node) -> Node:
    """1 where x is positive, -1 where it is negative, 0 at 0; its gradient is 0 everywhere."""
    return Sign(x)


def round(x: Node) -> Node:
    """The nearest whole number, a half to the even one; straight through, its gradient is 1.

    The derivative is 0, with which nothing below would learn (PyTorch's `torch.round` has it), so
    backward passes the gradient as if y were x. `F.round(F.detach(x))` passes none.

    Source: Bengio, Léonard & Courville 2013, arXiv:1308.3432: the straight-through estimator.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [0.5, 1.5, -1.2]).keep()
        ...     y = F.round(x).keep()
        ...     graph.backward(F.sum(y))
        ...     y.value.tolist(), x.gradient.tolist()
        ([0.0, 2.0, -1.0], [1.0, 1.0, 1.0])
    """
    return NODE_TYPES[arithmetic.round](x)


def floor(x: Node) -> Node:
    """The greatest whole number up to x; straight through, its gradient is 1: see `round`."""
    return NODE_TYPES[arithmetic.floor](x)


def ceil(x: Node) -> Node:
    """The least whole number from x on; straight through, its gradient is 1: see `round`."""
    return NODE_TYPES[arithmetic.ceil](x)


FUNCTIONS.update(negative=negative)
