"""Rules of linear maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynbatch import nodes as F
from dynbatch.differentiation.repeated import rows_of, sum_of_rows
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.nodes.linear import LinearMap, MatMul
from dynbatch.nodes.node import Node
from dynbatch.nodes.transposed_linear import TransposedLinearMap


def _product_of_rows(a: Node, b: Node) -> Node:
    """aᵀ b, summed over all rows: (…, I) and (…, O) -> (I, O)."""
    return F.matmul(F.transpose(rows_of(a)), rows_of(b))


@rule(LinearMap)
def _linear(y: LinearMap, dy: Node) -> tuple[Made, ...]:
    return (lambda: TransposedLinearMap(dy, weight=y.weight),)


@parameter_rule(LinearMap)
def _of_linear(y: LinearMap, dy: Node) -> Mapping[str, Callable[[], Node]]:
    (x,) = y.inputs
    return {"weight": lambda: _product_of_rows(dy, x), "bias": lambda: sum_of_rows(dy)}


@rule(TransposedLinearMap)
def _transposed_linear(y: TransposedLinearMap, dy: Node) -> tuple[Made, ...]:
    return (lambda: F.linear(dy, y.weight),)


@parameter_rule(TransposedLinearMap)
def _of_transposed_linear(y: TransposedLinearMap, dy: Node) -> Mapping[str, Callable[[], Node]]:
    (x,) = y.inputs
    return {"weight": lambda: _product_of_rows(x, dy)}


@rule(MatMul)
def _matmul(y: MatMul, dy: Node) -> tuple[Made, ...]:
    a, b = y.inputs
    if a.ndim == 1:
        by_rows: Made = lambda: F.unsqueeze(a, -1) @ F.unsqueeze(dy, 0)  # noqa: E731
    elif b.ndim == 2:
        by_rows = lambda: _product_of_rows(a, dy)  # noqa: E731
    else:
        by_rows = lambda: F.transpose(a, -2, -1) @ dy  # noqa: E731
    return lambda: dy @ F.transpose(b, -2, -1), by_rows
