"""The rule of functions of two values, one of which may be a number: as their kernels, on nodes."""

from __future__ import annotations

from dynbatch.differentiation.rules.expressions import gradients_of_pair
from dynbatch.differentiation.table import Made, rule
from dynbatch.nodes import arithmetic, selection
from dynbatch.nodes.node import Node


@rule(
    arithmetic.Add, arithmetic.Subtract, arithmetic.Multiply, arithmetic.Divide,
    arithmetic.RaiseTo, selection.Maximum, selection.Minimum,
)  # fmt: skip
def _of_two(y: arithmetic.Binary, dy: Node) -> tuple[Made, ...]:
    return gradients_of_pair(y.kernel, y.inputs, dy, y)


@rule(
    arithmetic.Scale, arithmetic.Shift, arithmetic.DivideByNumber, arithmetic.DivideNumber,
    arithmetic.RaiseNumber, selection.MaximumWithNumber, selection.MinimumWithNumber,
)  # fmt: skip
def _beside_number(y: arithmetic.Scalar, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return gradients_of_pair(y.kernel, (y.number, x) if y.side else (x, y.number), dy, y)
