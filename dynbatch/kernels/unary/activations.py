"""Activations."""

from __future__ import annotations

import math

from dynbatch.kernels.scalar.expressions import (
    Expression,
    expm1,
    log1p,
    maximum,
    minimum,
    normal_below,
    sigmoid_above,
    sigmoid_below,
    where,
)
from dynbatch.kernels.scalar.function import Function, function, primitive_function
from dynbatch.kernels.unary.arithmetic import absolute, clip, exp, sign

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
GELU_RANGE = 40.0
MISH_RANGE = 1000.0
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805

tanh = primitive_function("tanh", "tanh(x).")


# Where exp(-x) overflows, 1 / (1 + inf) is the 0 that is due. (1 + tanh(x/2)) / 2 takes as many
# passes, but is 0 from -17 on in float32. 1 - y is exact near 1, as y - y² is not.
@function(slope=lambda y: (1 - y) * y, cuda="sigmoid({0})")
def sigmoid(x: Expression) -> Expression:
    """σ(x) = 1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-x))


@function(slope=lambda y: sign(y))
def relu(x: Expression) -> Expression:
    """max(x, 0); the derivative at 0 is 0."""
    return maximum(x, 0)


@function(slope=lambda x, slope: where(x > 0, 1, slope))
def leaky_relu(x: Expression, slope: Expression) -> Expression:
    """x where x > 0, else slope · x."""
    return where(x > 0, x, x * slope)


@function(slope=lambda x, alpha: where(x > 0, 1, alpha * exp(minimum(x, 0))))
def elu(x: Expression, alpha: Expression) -> Expression:
    """x where x > 0, else alpha · (exp(x) - 1)."""
    return where(x > 0, x, alpha * expm1(minimum(x, 0)))


@function(slope=lambda x, alpha: where(x > 0, 1, exp(minimum(x, 0) / alpha)))
def celu(x: Expression, alpha: Expression) -> Expression:
    """x where x > 0, else alpha · (exp(x / alpha) - 1).

    Source: Barron 2017, arXiv:1704.07483.
    """
    return where(x > 0, x, alpha * expm1(minimum(x, 0) / alpha))


@function(slope=lambda x: where(x > 0, SELU_SCALE, SELU_SCALE * SELU_ALPHA * exp(minimum(x, 0))))
def selu(x: Expression) -> Expression:
    """1.0507 · x where x > 0, else 1.0507 · 1.6733 · (exp(x) - 1).

    Source: Klambauer et al. 2017, arXiv:1706.02515.
    """
    return SELU_SCALE * where(x > 0, x, SELU_ALPHA * expm1(minimum(x, 0)))


@function(slope=lambda x, low, high: where((x > low) & (x < high), 1, 0))
def hardtanh(x: Expression, low: Expression, high: Expression) -> Expression:
    """min(max(x, low), high); the derivative is 0 on the borders, as in PyTorch."""
    return clip(x, low, high)


def _softsign_slope(x: Expression) -> Expression:
    share = 1 / (1 + absolute(x))  # whose square may vanish; that of 1 + |x| overflows
    return share * share


@function(slope=_softsign_slope)
def softsign(x: Expression) -> Expression:
    """x / (1 + |x|)."""
    return x / (1 + absolute(x))


@function(slope=lambda x, y: sigmoid(x) + y * (1 - sigmoid(x)))
def silu(x: Expression) -> Expression:
    """x σ(x)."""
    return x * sigmoid(x)


@function(slope=lambda x: sigmoid(x), numpy="np.logaddexp({0}, 0)")
def softplus(x: Expression) -> Expression:
    """log(1 + exp(x))."""
    return maximum(x, 0) + log1p(exp(-absolute(x)))


def _mish_slope(x: Expression) -> Expression:
    near = clip(x, -MISH_RANGE, MISH_RANGE)  # beyond, the slope is 0 or 1
    square = sigmoid(-x) * sigmoid(-x)  # 1 - tanh² of softplus, which loses all digits, is
    rest = 2 / (1 + square) * square * (2 / (1 + square))  # 4 square / (1 + square)²
    return tanh(softplus(x)) + near * (rest * sigmoid(x))


@function(slope=_mish_slope)
def mish(x: Expression) -> Expression:
    """x tanh(log(1 + exp(x))).

    Source: Misra 2019, arXiv:1908.08681.
    """
    return x * tanh(softplus(x))


@function()
def log_sigmoid(x: Expression) -> Expression:
    """log σ(x) = -log(1 + exp(-x))."""
    return -softplus(-x)


def _gate(x: Expression) -> Expression:
    """2u: ½ (1 + tanh(u)) is σ(2u), which keeps its small values."""
    return 2 * (ROOT_2_OVER_PI * (x + GELU_CUBIC * x * x * x))


def _gelu_tanh_slope(x: Expression) -> Expression:
    near = clip(x, -GELU_RANGE, GELU_RANGE)  # beyond, the slope is 0 or 1
    inner = 2 * ROOT_2_OVER_PI * (1 + 3 * GELU_CUBIC * near * near)
    gate = _gate(near)
    return sigmoid_below(gate) * (1 + near * sigmoid_above(gate) * inner)


def gelu_tanh(x: Expression) -> Expression:
    """x σ(2 √(2/π) (x + 0.044715 x³))."""
    return x * sigmoid_below(_gate(x))


@function(forms={"tanh": Function(gelu_tanh, _gelu_tanh_slope)})
def gelu(x: Expression) -> Expression:
    """x Φ(x), exact (`approximate="none"`) or by tanh.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    return x * normal_below(x)
