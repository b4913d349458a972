"""The rule of the functions of one value: dx as the function's own derivative says, on nodes."""

from __future__ import annotations

from dynbatch.differentiation.rules.expressions import gradient_of
from dynbatch.differentiation.table import Made, rule
from dynbatch.nodes.node import Node
from dynbatch.nodes.unary.node_types import NODE_TYPES, Unary


@rule(*[NODE_TYPES[f] for f in NODE_TYPES if f.derivative is not None])
def _unary(y: Unary, dy: Node) -> tuple[Made, ...]:
    gradient = gradient_of(y.kernel, y.arguments())
    return (gradient and (lambda: gradient(y, y.inputs[0], dy)),)
