"""Functions of one value with their derivatives: activations, powers, logarithms.

A function is declared once, as a class without instances: its NumPy code, its CUDA expressions, and
which array its derivative reads. `FUNCTIONS` lists all of them; node types are made from them, CUDA
kernels are named after them, and `elementwise` runs them.

Results are inf and NaN where PyTorch's are; the executor has silenced NumPy's warnings of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import normal

Argument = float | str

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
GELU_RANGE = 40.0


class UnaryFunction:
    """y = f(x; arguments).

    A CUDA expression is C++ over x, or dy and s (the array that `reads` names), and the arguments
    a0, a1, …; each is a REAL. It may call what `common.cuh` defines; numbers are integers or casts
    to REAL, so that no float is computed as a double.

    Attributes:
        name:          of the function, and of its CUDA kernel.
        arguments:     names of its static arguments.
        forward:       (x, out, *arguments); `out` may be `x`.
        backward:      (dy, saved, out, *arguments), with saved = x or y as `reads` says.
        reads:         "input", "output", or "none".
        inplace:       whether `out` of backward may be dy.
        slope:         (saved, out), out = f'(x), where backward is a product with it.
        with_slope:    (x, *arguments) -> f(x) and f'(x), of functions that may be a gate's.
        cuda_forward:  a call of the CUDA function with its name, unless declared.
        cuda_backward: the gradient of x.
        cuda_variants: both expressions for a text argument, of which each has its own kernel.
    """

    name: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    forward: ClassVar[Callable[..., object]]
    backward: ClassVar[Callable[..., object]]
    reads: ClassVar[str]
    inplace: ClassVar[bool] = False
    slope: ClassVar[Callable[..., object] | None] = None
    with_slope: ClassVar[Callable[..., tuple[Array, Array]]]
    cuda_forward: ClassVar[str]
    cuda_backward: ClassVar[str]
    cuda_variants: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init_subclass__(cls, is_base: bool = False) -> None:
        if is_base:
            return
        cls.name = cls.__name__
        cls.arguments = tuple(inspect.signature(cls.forward).parameters)[2:]
        if "cuda_forward" not in cls.__dict__:
            cls.cuda_forward = f"{cls.name}(x)"
        FUNCTIONS[cls.name] = cls


FUNCTIONS: dict[str, type[UnaryFunction]] = {}


def variant(name: str, arguments: Sequence[Argument]) -> tuple[str, tuple[float, ...]]:
    """What compiled code calls a function with its static arguments, and those that are numbers.

    A text argument names a variant: gelu with "tanh" is gelu_tanh; "none" is gelu itself.
    """
    if not arguments:
        return name, ()
    words = [text for text in arguments if isinstance(text, str) and text != "none"]
    numbers = tuple([number for number in arguments if not isinstance(number, str)])
    return "_".join([name, *words]), numbers


class SlopeFunction(UnaryFunction, is_base=True):
    """A function whose backward multiplies dy by `slope`."""

    @classmethod
    def backward(cls, dy: Array, saved: Array, out: Array) -> None:
        assert cls.slope is not None
        cls.slope(saved, out)
        np.multiply(out, dy, out=out)

    @classmethod
    def with_slope(cls, x: Array) -> tuple[Array, Array]:
        assert cls.slope is not None and cls.reads == "output"
        y, slope = np.empty_like(x), np.empty_like(x)
        cls.forward(x, y)
        cls.slope(y, slope)
        return y, slope


def negate(x: Array, out: Array) -> None:
    """out = -x."""
    # Not np.negative: NumPy 2.4's is wrong for columns of rows that are 16 or 64 bytes apart.
    np.multiply(x, -1, out=out)


def _no_gradient(dy: Array, saved: Array, out: Array) -> None:
    out[...] = 0


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


class sign(UnaryFunction):
    """1 where x > 0, -1 where x < 0, else x; no gradient passes."""

    reads, inplace = "none", True
    cuda_backward = "(dy * 0)"
    forward = staticmethod(lambda x, out: np.sign(x, out=out))
    backward = staticmethod(_no_gradient)
