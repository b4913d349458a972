"""Rules of gated linear units."""

from __future__ import annotations

from typing import Any

from dynbatch import nodes as F
from dynbatch.differentiation.rules.expressions import gradient_of
from dynbatch.differentiation.table import Made, rule
from dynbatch.kernels.unary import FUNCTIONS
from dynbatch.nodes.gated import Gated, GatedHalves, GatedUnit
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.unary.node_types import NODE_TYPES


def _of_gate(y: Gated, gate: Node, value: Node, dy: Node) -> Node:
    gradient = gradient_of(FUNCTIONS[y.function], y.arguments)
    assert gradient is not None
    return gradient(_function(y, gate), gate, dy * value)


def _function(y: Gated, gate: Node) -> Node:
    """f(gate)."""
    function = FUNCTIONS[y.function]
    attributes: dict[str, Any] = dict(zip(function.arguments, y.arguments, strict=True))
    return NODE_TYPES[function](gate, **attributes)


@rule(GatedUnit)
def _gated_unit(y: GatedUnit, dy: Node) -> tuple[Made, ...]:
    gate, value = y.inputs
    return lambda: _of_gate(y, gate, value, dy), lambda: dy * _function(y, gate)


@rule(GatedHalves)
def _gated_halves(y: GatedHalves, dy: Node) -> tuple[Made, ...]:
    def joined() -> Node:
        (x,) = y.inputs
        x = x if x.ndim < 3 else F.reshape(x, (x.rows, x.width))
        gradient = dy if dy.ndim < 3 else F.reshape(dy, (dy.rows, dy.width))
        first = Slice(x, tokens=None, features=slice(None, y.width))
        second = Slice(x, tokens=None, features=slice(y.width, None))
        gate, value = (second, first) if y.value_first else (first, second)
        parts = [_of_gate(y, gate, value, gradient), gradient * _function(y, gate)]
        return F.reshape(F.concat(parts[:: -1 if y.value_first else 1]), y.inputs[0].shape)

    return (joined,)
