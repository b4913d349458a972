"""Rules of elementwise functions: dx = dy ⊙ f'(x), by what `slope_of` says of f'."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dynbatch import nodes as F
from dynbatch.differentiation.table import Made, rule
from dynbatch.kernels.unary import UnaryFunction, activations, arithmetic, trigonometric
from dynbatch.kernels.unary.activations import GELU_CUBIC, GELU_RANGE, ROOT_2_OVER_PI
from dynbatch.kernels.unary.trigonometric import TWO_OVER_ROOT_PI
from dynbatch.nodes.node import Node
from dynbatch.nodes.unary.node_types import NODE_TYPES, Unary

Slope = Callable[[Any, Node], Node]
"""(y, x) -> f'(x), for y = f(x)."""

IN_THE_TAIL = -0.5

FAR = 2.0**30
"""Beyond it √(x² ± 1) is |x| in float64 too; x² is still finite in float32."""


def _silu_slope(y: Node, x: Node) -> Node:
    s = F.sigmoid(x)
    return s + y * (1.0 - s)


def _elu_slope(y: Any, x: Node) -> Node:
    return F.where(F.greater(x, 0.0), 1.0, F.exp(F.clip(x, high=0.0)) * y.alpha)


def _clip_slope(y: Any, x: Node) -> Node:
    inside: Node = F.greater_equal(x, y.low) * F.less_equal(x, y.high)
    return inside


def _leaky_slope(y: Any, x: Node) -> Node:
    slope: Node = F.greater(x, 0.0) * (1.0 - y.slope) + y.slope
    return slope


def _power_slope(y: Any, x: Node) -> Node:
    slope: Node = F.pow(x, y.exponent - 1.0) * y.exponent
    return slope


def _gelu_slope(y: Any, x: Node) -> Node:
    if y.approximate == "tanh":
        near = F.clip(x, -GELU_RANGE, GELU_RANGE)  # beyond, the slope is 0 or 1
        square = near * near
        u = 2.0 * ROOT_2_OVER_PI * (near + GELU_CUBIC * near * square)
        inner = 2.0 * ROOT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * square)
        below = F.sigmoid(u)
        return below + near * below * (1.0 - below) * inner
    return _normal_distribution(x) + x * F.exp(x * x * -0.5) / math.sqrt(2 * math.pi)


def _normal_distribution(x: Node) -> Node:
    """Φ(x), in the lower tail as gelu(x) / x, which keeps its small values."""
    is_far = F.less(x, IN_THE_TAIL)
    far = F.where(is_far, x, 1.0)
    return F.where(is_far, F.gelu(far) / far, 0.5 * F.erf(x / math.sqrt(2)) + 0.5)


def _asin_slope(y: Node, x: Node) -> Node:
    near = F.clip(x, -2.0, 2.0)  # the slope is NaN there as well, where 1 - x² may be -inf
    slope: Node = F.pow((1.0 - near) * (1.0 + near), -0.5)
    return slope


def _asinh_slope(y: Node, x: Node) -> Node:
    near = F.clip(x, -FAR, FAR)
    slope: Node = F.pow(near * near + 1.0, -0.5) * (FAR / F.maximum(F.abs(x), FAR))
    return slope


def _acosh_slope(y: Node, x: Node) -> Node:
    near = F.clip(x, 0.0, FAR)  # below 1 the slope is NaN, below -1 too
    slope: Node = F.pow((near - 1.0) * (near + 1.0), -0.5) * (FAR / F.maximum(x, FAR))
    return slope


SLOPES: dict[type[UnaryFunction], Slope] = {
    arithmetic.absolute: lambda y, x: F.sign(x),
    arithmetic.exp: lambda y, x: y,
    arithmetic.log: lambda y, x: 1.0 / x,
    arithmetic.sqrt: lambda y, x: 0.5 / y,
    arithmetic.power: _power_slope,
    arithmetic.clip: _clip_slope,
    activations.tanh: lambda y, x: 1.0 - y * y,
    activations.sigmoid: lambda y, x: y * (1.0 - y),
    activations.relu: lambda y, x: F.sign(y),
    activations.leaky_relu: _leaky_slope,
    activations.elu: _elu_slope,
    activations.gelu: _gelu_slope,
    activations.silu: _silu_slope,
    activations.softplus: lambda y, x: F.sigmoid(x),
    activations.log_sigmoid: lambda y, x: F.sigmoid(-x),
    trigonometric.sin: lambda y, x: F.cos(x),
    trigonometric.cos: lambda y, x: -F.sin(x),
    trigonometric.tan: lambda y, x: 1.0 + y * y,
    trigonometric.asin: _asin_slope,
    trigonometric.acos: lambda y, x: -_asin_slope(y, x),
    trigonometric.atan: lambda y, x: 1.0 / (1.0 + x * x),
    trigonometric.sinh: lambda y, x: F.cosh(x),
    trigonometric.cosh: lambda y, x: F.sinh(x),
    trigonometric.asinh: _asinh_slope,
    trigonometric.acosh: _acosh_slope,
    trigonometric.atanh: lambda y, x: 1.0 / ((1.0 - x) * (1.0 + x)),
    trigonometric.erf: lambda y, x: F.exp(-(x * x)) * TWO_OVER_ROOT_PI,
}


@rule(*[NODE_TYPES[function] for function in SLOPES])
def _unary(y: Unary, dy: Node) -> tuple[Made, ...]:
    if getattr(y, "exponent", None) == 0:
        return (None,)
    return (lambda: dy * SLOPES[y.kernel](y, y.inputs[0]),)


@rule(NODE_TYPES[arithmetic.negative])
def _negative(y: Unary, dy: Node) -> tuple[Made, ...]:
    return (lambda: -dy,)
