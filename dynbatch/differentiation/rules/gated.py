"""Rules of gated linear units."""

from __future__ import annotations

from dynbatch import nodes as F
from dynbatch.differentiation.rules.expressions import gradients_of_pair
from dynbatch.differentiation.table import Made, rule
from dynbatch.kernels.gated import unit
from dynbatch.kernels.unary import FUNCTIONS
from dynbatch.nodes.gated import Gated, GatedHalves, GatedUnit
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.slice import Slice


def _gradients(y: Gated, gate: Node, value: Node, dy: Node) -> tuple[Made, ...]:
    return gradients_of_pair(unit(FUNCTIONS[y.function], y.arguments), (gate, value), dy)


@rule(GatedUnit)
def _gated_unit(y: GatedUnit, dy: Node) -> tuple[Made, ...]:
    gate, value = y.inputs
    return _gradients(y, gate, value, dy)


@rule(GatedHalves)
def _gated_halves(y: GatedHalves, dy: Node) -> tuple[Made, ...]:
    def joined() -> Node:
        (x,) = y.inputs
        x = x if x.ndim < 3 else F.reshape(x, (x.rows, x.width))
        gradient = dy if dy.ndim < 3 else F.reshape(dy, (dy.rows, dy.width))
        first = Slice(x, tokens=None, features=slice(None, y.width))
        second = Slice(x, tokens=None, features=slice(y.width, None))
        gate, value = (second, first) if y.value_first else (first, second)
        parts = [made() for made in _gradients(y, gate, value, gradient) if made]
        return F.reshape(F.concat(parts[:: -1 if y.value_first else 1]), y.inputs[0].shape)

    return (joined,)
