"""Division of a dimension by its norm, and the cosine of an angle: compositions of others."""

from __future__ import annotations

import math
from typing import Never

from dynbatch.arguments import number
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.extremum import max, min
from dynbatch.nodes.reductions.reduce import sum
from dynbatch.nodes.selection import not_equal, where
from dynbatch.nodes.shape.axes import axis
from dynbatch.nodes.shape.expand import matched
from dynbatch.nodes.unary.arithmetic import abs, clip


def normalize(x: Node, p: float = 2.0, dim: int = -1, eps: float = 1e-12, **habits: Never) -> Node:
    """x / max(‖x‖_p, eps) along a dim, as `torch.nn.functional.normalize`.

    ‖x‖_p is (Σ |x|^p)^(1/p), the number of elements that are not 0 for p = 0, and the largest or
    the least |x| for p = ±inf, whose gradient goes to the first such element. Where it is 0 its
    derivative is 0, as in PyTorch, so that zeros stay zeros and pass dy / eps.

    Args:
        p:   of the norm, any number.
        dim: -1, each token's features (PyTorch's default, dim 1, of a matrix); 0, each feature's
             tokens.
        eps: the least divisor, 0 or more.

    Raises:
        ShapeError:    x has no such dim.
        ArgumentError: p is not a number, or eps not one from 0 on.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph(dtype="float64") as graph:
        ...     F.normalize(F.input(graph, [[3.0, 4.0], [0.0, 0.0]])).value.round(3).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    x = node_of("normalize", x)
    axis("normalize", x, dim, habits)
    p = number("normalize", "p", p, "[-inf, inf]")
    eps = number("normalize", "eps", eps, "[0, inf)")
    return x / clip(_norm(x, p, dim), low=eps)


def cosine_similarity(a: Node, b: Node, dim: int = -1, eps: float = 1e-8, **habits: Never) -> Node:
    """Σ a b / (max(‖a‖, eps) · max(‖b‖, eps)) along a dim, as PyTorch's function of this name.

    Shapes that operators repeat to one shape will do. As of every reduction over features the
    result is a column (T, 1), over tokens (D,), and of vectors a scalar.

    Args:
        dim: -1, each token's features (PyTorch's default, dim 1, of matrices); 0, each feature's
             tokens.
        eps: the least norm, 0 or more.

    Raises:
        ShapeError:    the shapes do not fit, or there is no such dim.
        ArgumentError: eps is not a number from 0 on.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     rows = F.input(graph, [[3.0, 4.0], [4.0, -3.0]])
        ...     F.cosine_similarity(rows, F.input(graph, [6.0, 8.0])).value.tolist()
        [[1.0], [0.0]]
    """
    what = "cosine_similarity"
    a, b = matched([node_of(what, a), node_of(what, b)])
    axis(what, a, dim, habits)
    eps = number(what, "eps", eps, "[0, inf)")
    return sum(normalize(a, dim=dim, eps=eps) * normalize(b, dim=dim, eps=eps), dim=dim)


def _norm(x: Node, p: float, dim: int) -> Node:
    size = abs(x)
    if math.isinf(p):
        return (max if p > 0 else min)(size, dim=dim)
    if p == 0:
        return sum(not_equal(x, 0.0), dim=dim)
    if p == 1:
        return sum(size, dim=dim)
    if p < 1:  # whose derivative at 0 is infinite, or which is there itself
        is_nonzero = not_equal(size, 0.0)
        powers = where(is_nonzero, where(is_nonzero, size, 1.0) ** p, 0.0)
    else:
        powers = x * x if p == 2 else size**p
    total = sum(powers, dim=dim)
    # To a negative power a single 0 makes the sum infinite, and the norm 0. NaN is not 0.
    has_root = min(is_nonzero, dim=dim) if p < 0 else not_equal(total, 0.0)
    return where(has_root, where(has_root, total, 1.0) ** (1 / p), 0.0)
