"""Negation, powers, logarithms, clipping and signs.

Results are inf and NaN where PyTorch's are; the executor has silenced NumPy's warnings of them.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.unary.function import UnaryFunction


def negate(x: Array, out: Array) -> None:
    """out = -x."""
    # Not np.negative: NumPy 2.4's is wrong for columns of rows that are 16 or 64 bytes apart.
    np.multiply(x, -1, out=out)


def _no_gradient(dy: Array, saved: Array, out: Array) -> None:
    out[...] = 0


class negative(UnaryFunction):
    """-x."""

    reads, inplace = "none", True
    cuda_forward, cuda_backward = "-x", "-dy"
    forward = staticmethod(negate)
    backward = staticmethod(lambda dy, saved, out: negate(dy, out))


class detached(UnaryFunction):
    """x, without a gradient."""

    reads, inplace = "none", True
    cuda_forward, cuda_backward = "x", "0"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        if out is not x:
            np.copyto(out, x)

    backward = staticmethod(_no_gradient)


class exp(UnaryFunction):
    """exp(x)."""

    reads, inplace = "output", True
    cuda_backward = "dy * s"
    forward = staticmethod(lambda x, out: np.exp(x, out=out))
    backward = staticmethod(lambda dy, y, out: np.multiply(dy, y, out=out))


class log(UnaryFunction):
    """Natural logarithm."""

    reads, inplace = "input", True
    cuda_backward = "dy / s"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.log(x, out=out)

    @staticmethod
    def backward(dy: Array, x: Array, out: Array) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(dy, x, out=out)


class sqrt(UnaryFunction):
    """√x."""

    reads, inplace = "output", True
    cuda_backward = "dy / s * (REAL)0.5"

    @staticmethod
    def forward(x: Array, out: Array) -> None:
        with np.errstate(invalid="ignore"):
            np.sqrt(x, out=out)

    @staticmethod
    def backward(dy: Array, y: Array, out: Array) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(dy, y, out=out)
        np.multiply(out, 0.5, out=out)


class absolute(UnaryFunction):
    """|x|; the derivative at 0 is 0."""

    reads = "input"
    cuda_forward, cuda_backward = "fabs(x)", "dy * sign(s)"
    forward = staticmethod(lambda x, out: np.abs(x, out=out))

    @staticmethod
    def backward(dy: Array, x: Array, out: Array) -> None:
        np.sign(x, out=out)
        np.multiply(out, dy, out=out)


class power(UnaryFunction):
    """x^exponent for a constant exponent."""

    reads = "input"
    cuda_forward = "pow(x, a0)"
    cuda_backward = "(a0 == 0 ? 0 : pow(s, a0 - 1) * a0 * dy)"

    @staticmethod
    def forward(x: Array, out: Array, exponent: float) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.power(x, exponent, out=out)

    @staticmethod
    def backward(dy: Array, x: Array, out: Array, exponent: float) -> None:
        if exponent == 0:  # also at x = 0, where 0 · x^-1 is not a number
            out[...] = 0
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            np.power(x, exponent - 1, out=out)
        np.multiply(out, exponent, out=out)
        np.multiply(out, dy, out=out)


class clip(UnaryFunction):
    """min(max(x, low), high); the derivative is 1 on the borders, as in PyTorch."""

    reads, inplace = "input", True
    cuda_forward = "clip(x, a0, a1)"
    cuda_backward = "dy * (s >= a0 && s <= a1)"
    forward = staticmethod(lambda x, out, low, high: np.clip(x, low, high, out=out))

    @staticmethod
    def backward(dy: Array, x: Array, out: Array, low: float, high: float) -> None:
        np.multiply(dy, (x >= low) & (x <= high), out=out)


class sign(UnaryFunction):
    """1 where x > 0, -1 where x < 0, else x; no gradient passes."""

    reads, inplace = "none", True
    cuda_backward = "(dy * 0)"
    forward = staticmethod(lambda x, out: np.sign(x, out=out))
    backward = staticmethod(_no_gradient)
