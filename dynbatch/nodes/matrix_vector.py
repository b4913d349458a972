"""Products of matrices with vectors, of each of several heads: `outer`, `matvec`, `vecmat`."""

from __future__ import annotations

from typing import NoReturn

from dynbatch.nodes.arguments import nodes_of
from dynbatch.nodes.linear import matmul
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.reshape import squeeze, unsqueeze


def outer(a: Node, b: Node) -> Node:
    """The outer product a bᵀ, y_ij = a_i b_j; of several heads, one for each, as (…, D) and (…, E).

    (D,) (E,) -> (D, E);  (H, D) (H, E) -> (H, D, E).

    Raises:
        ShapeError: the dimensions before the last differ, or one of the two is a scalar.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     a, b = F.input(graph, [1.0, 2.0]), F.input(graph, [3.0, 4.0])
        ...     F.outer(a, b).value.tolist()
        [[3.0, 4.0], [6.0, 8.0]]
    """
    a, b = nodes_of("outer", a, b)
    if not a.ndim or a.shape[:-1] != b.shape[:-1] or not b.ndim:
        _refuse(
            "outer", a, b, "two vectors, (D,) and (E,), or one for each head, (H, D) and (H, E)"
        )
    return matmul(unsqueeze(a, -1), unsqueeze(b, -2))


def matvec(matrix: Node, x: Node) -> Node:
    """S x, y_i = Σ_j S_ij x_j; of several heads, one for each, as `numpy.matvec`.

    (D, E) (E,) -> (D,);  (H, D, E) (H, E) -> (H, D).

    Raises:
        ShapeError: the inner dimensions, or those before, differ.
    """
    matrix, x = nodes_of("matvec", matrix, x)
    if matrix.ndim < 2 or x.shape != (*matrix.shape[:-2], matrix.shape[-1]):
        _refuse("matvec", matrix, x, "S (D, E) and x (E,), or for each head (H, D, E) and (H, E)")
    return squeeze(matmul(matrix, unsqueeze(x, -1)), -1)


def vecmat(x: Node, matrix: Node) -> Node:
    """Sᵀ x, y_j = Σ_i x_i S_ij; of several heads, one for each, as `numpy.vecmat`.

    (D,) (D, E) -> (E,);  (H, D) (H, D, E) -> (H, E).

    Raises:
        ShapeError: the inner dimensions, or those before, differ.
    """
    x, matrix = nodes_of("vecmat", x, matrix)
    if matrix.ndim < 2 or x.shape != matrix.shape[:-1]:
        _refuse("vecmat", x, matrix, "x (D,) and S (D, E), or for each head (H, D) and (H, D, E)")
    return squeeze(matmul(unsqueeze(x, -2), matrix), -2)


def _refuse(name: str, a: Node, b: Node, rule: str) -> NoReturn:
    a.refuse(
        f"{name} of shapes {a.shape} and {b.shape}",
        rule,
        "F.reshape(x, (H, D)) makes heads of a vector (H · D,)",
    )
