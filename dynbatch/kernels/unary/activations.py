"""Activations."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.unary import normal
from dynbatch.kernels.unary.arithmetic import negate
from dynbatch.kernels.unary.function import SlopeFunction, UnaryFunction

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
GELU_RANGE = 40.0


def _logistic(x: Array) -> Array:
    result = np.empty_like(x)
    sigmoid.forward(x, result)
    return result


class sigmoid(SlopeFunction):
    """σ(x) = 1 / (1 + exp(-x))."""

    reads = "output"
    cuda_backward = "dy * ((1 - s) * s)"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        # Where exp(-x) overflows, 1 / (1 + inf) is the 0 that is due. (1 + tanh(x/2)) / 2 takes as
        # many passes, but is 0 from -17 on in float32.
        negate(x, out)
        np.exp(out, out=out)
        np.add(out, 1, out=out)
        np.divide(1, out, out=out)  # NumPy's reciprocal is slower

    @staticmethod
    def slope(y: Array, out: Array) -> None:
        np.subtract(1, y, out=out)  # exact near 1, as y - y² is not
        np.multiply(out, y, out=out)


class tanh(SlopeFunction):
    """tanh(x)."""

    reads = "output"
    cuda_backward = "dy * (1 - s * s)"
    forward = staticmethod(lambda x, out: np.tanh(x, out=out))

    @staticmethod
    def slope(y: Array, out: Array) -> None:
        np.multiply(y, y, out=out)
        np.subtract(1, out, out=out)


class relu(SlopeFunction):
    """max(x, 0); the derivative at 0 is 0."""

    reads = "output"
    cuda_backward = "dy * (s > 0 ? 1 : s)"
    forward = staticmethod(lambda x, out: np.maximum(x, 0, out=out))
    slope = staticmethod(lambda y, out: np.sign(y, out=out))


class leaky_relu(UnaryFunction):
    """x where x > 0, else slope · x."""

    reads, inplace = "input", True
    cuda_forward = "(x > 0 ? x : a0 * x)"
    cuda_backward = "dy * (s > 0 ? 1 : a0)"

    @staticmethod
    def forward(x: Array, out: Array, slope: float) -> None:
        scaled = np.multiply(x, slope)
        np.copyto(out, np.where(x > 0, x, scaled))

    @staticmethod
    def backward(dy: Array, x: Array, out: Array, slope: float) -> None:
        np.multiply(dy, np.where(x > 0, 1, slope).astype(dy.dtype), out=out)


class elu(UnaryFunction):
    """x where x > 0, else alpha · (exp(x) - 1)."""

    reads, inplace = "input", True
    cuda_forward = "(x > 0 ? x : a0 * expm1(x))"
    cuda_backward = "dy * (s > 0 ? 1 : a0 * exp(s))"

    @staticmethod
    def forward(x: Array, out: Array, alpha: float) -> None:
        np.copyto(out, np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))

    @staticmethod
    def backward(dy: Array, x: Array, out: Array, alpha: float) -> None:
        slope = np.where(x > 0, np.ones_like(x), alpha * np.exp(np.minimum(x, 0)))
        np.multiply(dy, slope, out=out)


class gelu(UnaryFunction):
    """x Φ(x), exact (`approximate="none"`) or by tanh.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """

    reads, inplace = "input", True
    cuda_backward = "dy * gelu_slope(s)"
    cuda_variants: ClassVar = {"tanh": ("gelu_tanh(x)", "dy * gelu_tanh_slope(s)")}

    @staticmethod
    def forward(x: Array, out: Array, approximate: str) -> None:
        if approximate == "tanh":
            # ½ (1 + tanh(u)) is σ(2u), which keeps its small values.
            below = _logistic(2 * _inner(x))
        else:
            below, _ = normal.distribution(x)
        np.multiply(x, below, out=out)

    @classmethod
    def backward(cls, dy: Array, x: Array, out: Array, approximate: str) -> None:
        np.multiply(dy, cls.with_slope(x, approximate)[1], out=out)

    @staticmethod
    def with_slope(x: Array, approximate: str) -> tuple[Array, Array]:
        if approximate == "tanh":
            near = np.clip(x, -GELU_RANGE, GELU_RANGE)  # beyond, the slope is 0 or 1
            u = 2 * _inner(near)
            inner = 2 * ROOT_2_OVER_PI * (1 + 3 * GELU_CUBIC * near * near)
            below = _logistic(u)
            return x * below, below * (1 + near * _logistic(-u) * inner)
        below, density = normal.distribution(x)
        return x * below, below + x * (density / normal.ROOT_2_PI)


def _inner(x: Array) -> Array:
    result: Array = ROOT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)
    return result


class silu(UnaryFunction):
    """x σ(x)."""

    reads, inplace = "input", True
    cuda_forward, cuda_backward = "x * sigmoid(x)", "dy * silu_slope(s)"
    forward = staticmethod(lambda x, out: np.multiply(x, _logistic(x), out=out))

    @classmethod
    def backward(cls, dy: Array, x: Array, out: Array) -> None:
        np.multiply(dy, cls.with_slope(x)[1], out=out)

    @staticmethod
    def with_slope(x: Array) -> tuple[Array, Array]:
        gate = _logistic(x)
        y = x * gate
        return y, gate + y * (1 - gate)


class softplus(UnaryFunction):
    """log(1 + exp(x))."""

    reads = "input"
    cuda_backward = "dy * sigmoid(s)"
    forward = staticmethod(lambda x, out: np.logaddexp(x, 0, out=out))

    @staticmethod
    def backward(dy: Array, x: Array, out: Array) -> None:
        sigmoid.forward(x, out)
        np.multiply(out, dy, out=out)


class log_sigmoid(UnaryFunction):
    """log σ(x) = -log(1 + exp(-x))."""

    reads = "input"
    cuda_backward = "dy * sigmoid(-s)"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        negate(x, out)
        np.logaddexp(out, 0, out=out)
        negate(out, out)

    @staticmethod
    def backward(dy: Array, x: Array, out: Array) -> None:
        negate(x, out)
        sigmoid.forward(out, out)
        np.multiply(out, dy, out=out)
