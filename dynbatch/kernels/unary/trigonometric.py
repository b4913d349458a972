"""Trigonometric and hyperbolic functions, their inverses, and the error function.

Angles are in radians. Outside of a function's domain its value is NaN, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.unary import normal
from dynbatch.kernels.unary.arithmetic import negate
from dynbatch.kernels.unary.function import SlopeFunction

TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


def _quiet(function: Callable[..., object]) -> staticmethod[[Array, Array], None]:
    """A function of NumPy that is not warned of values outside of its domain."""

    def forward(x: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            function(x, out=out)

    return staticmethod(forward)


def _off_one(x: Array, out: Array) -> None:
    """out = 1 - x², exact near 1 and -1."""
    np.subtract(1, x, out=out)
    np.multiply(out, 1 + x, out=out)


class sin(SlopeFunction):
    """sin(x)."""

    reads = "input"
    cuda_backward = "dy * cos(s)"
    forward = _quiet(np.sin)
    slope = _quiet(np.cos)


class cos(SlopeFunction):
    """cos(x)."""

    reads = "input"
    cuda_backward = "dy * -sin(s)"
    forward = _quiet(np.cos)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        sin.forward(x, out)
        negate(out, out)


class tan(SlopeFunction):
    """tan(x)."""

    reads = "output"
    cuda_backward = "dy * (1 + s * s)"
    forward = _quiet(np.tan)

    @staticmethod
    def slope(y: Array, out: Array) -> None:
        np.multiply(y, y, out=out)
        np.add(out, 1, out=out)


class asin(SlopeFunction):
    """The angle from -π/2 to π/2 whose sine is x."""

    reads = "input"
    cuda_backward = "dy / sqrt((1 - s) * (1 + s))"
    forward = _quiet(np.arcsin)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            _off_one(x, out)
            np.divide(1, np.sqrt(out, out=out), out=out)


class acos(SlopeFunction):
    """The angle from 0 to π whose cosine is x."""

    reads = "input"
    cuda_backward = "-dy / sqrt((1 - s) * (1 + s))"
    forward = _quiet(np.arccos)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        asin.slope(x, out)
        negate(out, out)


class atan(SlopeFunction):
    """The angle from -π/2 to π/2 whose tangent is x."""

    reads = "input"
    cuda_backward = "dy / (1 + s * s)"
    forward = _quiet(np.arctan)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        with np.errstate(over="ignore"):
            np.multiply(x, x, out=out)
        np.add(out, 1, out=out)
        np.divide(1, out, out=out)


class sinh(SlopeFunction):
    """(exp(x) - exp(-x)) / 2."""

    reads = "input"
    cuda_backward = "dy * cosh(s)"
    forward = _quiet(np.sinh)
    slope = _quiet(np.cosh)


class cosh(SlopeFunction):
    """(exp(x) + exp(-x)) / 2."""

    reads = "input"
    cuda_backward = "dy * sinh(s)"
    forward = _quiet(np.cosh)
    slope = _quiet(np.sinh)


class asinh(SlopeFunction):
    """The number whose sinh is x: log(x + √(x² + 1))."""

    reads = "input"
    cuda_backward = "dy / hypot(s, (REAL)1)"
    forward = _quiet(np.arcsinh)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        np.hypot(x, 1, out=out)  # x² overflows
        np.divide(1, out, out=out)


class acosh(SlopeFunction):
    """The number from 0 on whose cosh is x, which is at least 1: log(x + √(x² - 1))."""

    reads = "input"
    cuda_backward = "dy / (sqrt(s - 1) * sqrt(s + 1))"
    forward = _quiet(np.arccosh)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            np.sqrt(x - 1, out=out)
            np.multiply(out, np.sqrt(x + 1), out=out)
            np.divide(1, out, out=out)


class atanh(SlopeFunction):
    """The number whose tanh is x: log((1 + x) / (1 - x)) / 2."""

    reads = "input"
    cuda_backward = "dy / ((1 - s) * (1 + s))"
    forward = _quiet(np.arctanh)

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            _off_one(x, out)
            np.divide(1, out, out=out)


class erf(SlopeFunction):
    """2/√π times the integral of exp(-t²) for t from 0 to x."""

    reads = "input"
    cuda_backward = "dy * erf_slope(s)"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        near = np.clip(x, -0.5, 0.5)
        above, _ = normal.tail(x * x.dtype.type(normal.ROOT_2))
        far = np.copysign(1 - 2 * above, x)
        np.copyto(out, np.where(np.abs(x) <= 0.5, _erf_near_0(near), far))

    @staticmethod
    def slope(x: Array, out: Array) -> None:
        a = np.minimum(np.abs(x), x.dtype.type(40))  # beyond, it is 0
        np.multiply(normal.exp_of_square(a, 1.0), TWO_OVER_ROOT_PI, out=out)


def _erf_near_0(x: Array) -> Array:
    """2/√π Σ_k (-1)^k x^(2k+1) / (k! (2k + 1)); where |x| <= 1/2 the next term is below 1e-18."""
    square = x * x
    terms = [(-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(13)]
    sum_ = np.full_like(x, terms[-1])
    for term in terms[-2::-1]:
        np.multiply(sum_, square, out=sum_)
        np.add(sum_, x.dtype.type(term), out=sum_)
    result: Array = sum_ * x * x.dtype.type(TWO_OVER_ROOT_PI)
    return result
