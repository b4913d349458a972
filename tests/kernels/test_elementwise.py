"""How far elementwise functions and their derivatives are from the truth, in the last places."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from dynbatch.kernels import elementwise, unary
from dynbatch.kernels.unary import UnaryFunction, activations, arithmetic, trigonometric
from tests.kernels.columns import columns

mp: Any = pytest.importorskip("mpmath", reason="compares with mpmath, which comes with PyTorch")
mp.mp.dps = 60


class Function(NamedTuple):
    """A function under test.

    Args:
        kernel:     of `kernels.elementwise`.
        value:      f(x) by mpmath.
        slope:      f' by mpmath, of the input or the output, as the kernel reads it.
        ulps:       the greatest error of a value, in units of the last place.
        slope_ulps: the same of a derivative.
        size:       of the terms that a derivative is the sum of, where they cancel each other.
        arguments:  of the kernel.
        begin, end: of its domain.
    """

    kernel: type[UnaryFunction]
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    ulps: float = 3
    slope_ulps: float = 3
    size: Callable[[Any], Any] | None = None
    arguments: tuple[Any, ...] = ()
    begin: float = -math.inf
    end: float = math.inf

    @property
    def name(self) -> str:
        return "_".join([self.kernel.name, *map(str, self.arguments)])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


def softplus(x: Any) -> Any:
    return max(x, 0) + mp.log1p(mp.exp(-abs(x)))


def normal(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2 if abs(x) < 1000 else mp.mpf(x > 0)


def density(x: Any) -> Any:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) if abs(x) < 1000 else mp.mpf(0)


def inner(x: Any) -> Any:
    """Half the argument of the sigmoid that gelu is by tanh."""
    return mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3)


def inner_slope(x: Any) -> Any:
    return mp.sqrt(8 / mp.pi) * (1 + 3 * mp.mpf("0.044715") * x**2)


def terms(gate: Any, rest: Any) -> Any:
    return abs(gate) + abs(rest)


quarter = mp.mpf(0.25)
FUNCTIONS = [
    Function(activations.sigmoid, sigmoid, lambda y: y * (1 - y)),
    # PyTorch too takes 1 - y², which near 1 is as good as y is.
    Function(activations.tanh, mp.tanh, lambda y: 1 - y * y, size=lambda y: 1),
    Function(activations.relu, lambda x: max(x, 0), lambda y: mp.sign(y)),
    Function(arithmetic.negative, lambda x: -x, lambda dy: mp.mpf(-1)),
    Function(arithmetic.detached, lambda x: x, lambda dy: mp.mpf(0)),
    Function(arithmetic.exp, mp.exp, lambda y: y),
    Function(arithmetic.log, mp.log, lambda x: 1 / x, begin=0),
    Function(arithmetic.sqrt, mp.sqrt, lambda y: 1 / (2 * y), begin=0),
    Function(arithmetic.absolute, abs, mp.sign),
    Function(arithmetic.sign, mp.sign, lambda dy: mp.mpf(0)),
    Function(arithmetic.power, lambda x: x**3, lambda x: 3 * x * x, arguments=(3.0,)),
    Function(
        arithmetic.power,
        lambda x: x ** mp.mpf(-0.5),
        lambda x: -(x ** mp.mpf(-1.5)) / 2,
        arguments=(-0.5,),
        begin=0,
    ),
    Function(
        arithmetic.clip,
        lambda x: min(max(x, -2), 3),
        lambda x: mp.mpf(-2 <= x <= 3),
        arguments=(-2.0, 3.0),
    ),
    Function(
        activations.leaky_relu,
        lambda x: x if x > 0 else x / 4,
        lambda x: mp.mpf(1) if x > 0 else quarter,
        arguments=(0.25,),
    ),
    Function(
        activations.elu,
        lambda x: x if x > 0 else quarter * mp.expm1(x),
        lambda x: mp.mpf(1) if x > 0 else quarter * mp.exp(x),
        arguments=(0.25,),
    ),
    Function(activations.softplus, softplus, sigmoid),
    Function(activations.log_sigmoid, lambda x: -softplus(-x), lambda x: sigmoid(-x)),
    Function(
        activations.silu,
        lambda x: x * sigmoid(x),
        lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
        slope_ulps=16,
        size=lambda x: sigmoid(x) * terms(1, x * sigmoid(-x)),
    ),
    Function(
        activations.gelu,
        lambda x: x * normal(x),
        lambda x: normal(x) + x * density(x),
        ulps=6,
        slope_ulps=6,
        size=lambda x: terms(normal(x), x * density(x)),
        arguments=("none",),
    ),
    # Its argument grows as x³, and with it what the rounding of the argument is worth.
    Function(
        activations.gelu,
        lambda x: x * sigmoid(inner(x)),
        lambda x: sigmoid(inner(x)) * (1 + x * sigmoid(-inner(x)) * inner_slope(x)),
        ulps=300,
        slope_ulps=300,
        size=lambda x: sigmoid(inner(x)) * terms(1, x * sigmoid(-inner(x)) * inner_slope(x)),
        arguments=("tanh",),
    ),
    Function(trigonometric.sin, mp.sin, mp.cos),
    Function(trigonometric.cos, mp.cos, lambda x: -mp.sin(x)),
    Function(trigonometric.tan, mp.tan, lambda y: 1 + y * y),
    Function(trigonometric.asin, mp.asin, lambda x: 1 / mp.sqrt(1 - x * x), begin=-1, end=1),
    Function(trigonometric.acos, mp.acos, lambda x: -1 / mp.sqrt(1 - x * x), begin=-1, end=1),
    Function(trigonometric.atan, mp.atan, lambda x: 1 / (1 + x * x)),
    Function(trigonometric.sinh, mp.sinh, mp.cosh),
    Function(trigonometric.cosh, mp.cosh, mp.sinh),
    Function(trigonometric.asinh, mp.asinh, lambda x: 1 / mp.sqrt(1 + x * x)),
    Function(trigonometric.acosh, mp.acosh, lambda x: 1 / mp.sqrt(x * x - 1), begin=1),
    Function(trigonometric.atanh, mp.atanh, lambda x: 1 / (1 - x * x), begin=-1, end=1),
    Function(
        trigonometric.erf,
        mp.erf,
        lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x) if abs(x) < 1000 else mp.mpf(0),
        ulps=4,
        slope_ulps=5,
    ),
]


def points(dtype: Any, begin: float = -math.inf, end: float = math.inf) -> Any:
    """Both signs, from subnormal numbers to near the greatest; most from 0.01 to 1000."""
    finite = np.finfo(dtype)
    sizes = np.concatenate(
        [
            np.geomspace(float(finite.tiny), float(finite.max) / 2, 24),
            np.geomspace(0.01, 1000, 80),
            [finite.smallest_subnormal, finite.tiny / 2, 0.5, 1, 2, 16, 17, 38, 87, 88.5, 700, 708],
        ]
    ).astype(dtype)
    both = np.concatenate([sizes, -sizes])
    return both[(both > begin) & (both < end)]


def errors(found: Any, exact: list[Any], sizes: list[Any]) -> Any:
    """Of each number, in units of the last place of a size.

    What is below the least normal numbers needs only be as small, and what is beyond the greatest
    infinite.
    """
    finite, result = np.finfo(found.dtype), []
    least, greatest = mp.mpf(float(finite.tiny)) * 100, mp.mpf(float(finite.max))
    for number, truth, size in zip(found.tolist(), exact, sizes, strict=True):
        if abs(truth) > greatest:
            result.append(0.0 if number == mp.sign(truth) * mp.inf else math.inf)
        elif abs(size) < least:
            result.append(0.0 if abs(number) <= 2 * least else math.inf)
        else:
            unit = mp.mpf(float(np.spacing(found.dtype.type(float(abs(size))))))
            wrong = abs(mp.mpf(number) - truth) / unit
            result.append(float(wrong) if mp.isfinite(wrong) else math.inf)
    return np.array(result)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_values_and_derivatives_are_good_to_the_last_places(function, dtype):
    x = points(dtype, function.begin, function.end)
    y, dx, dy = np.empty_like(x), np.empty_like(x), np.ones_like(x)
    with np.errstate(all="ignore"):
        elementwise.apply(function.kernel, x, y, *function.arguments)
        saved = {"input": x, "output": y, "none": dy}[function.kernel.reads]
        elementwise.apply_backward(function.kernel, dy, saved, dx, *function.arguments)
    exact = [function.value(mp.mpf(v)) for v in x.tolist()]
    wrong = errors(y, exact, exact)
    assert wrong.max() <= function.ulps, f"{wrong.max():.1f} units at {x[wrong.argmax()]}"
    held = np.isfinite(saved) & ((saved != 0) | (function.kernel.reads != "output"))
    given = [mp.mpf(v) for v in saved[held].tolist()]
    slopes = [function.slope(v) for v in given]
    sizes = slopes if function.size is None else [mp.mpf(function.size(v)) for v in given]
    wrong = errors(dx[held], slopes, sizes)
    assert wrong.max() <= function.slope_ulps, f"{wrong.max():.1f} at {x[held][wrong.argmax()]}"


# At +inf, -inf, 0 and -0. As in PyTorch, x times a gate that closes is NaN at -inf.
inf, nan = math.inf, math.nan
AT_THE_BORDERS = {
    "sigmoid": (1, 0, 0.5, 0.5),
    "tanh": (1, -1, 0, -0.0),
    "relu": (inf, 0, 0, 0),
    "negative": (-inf, inf, -0.0, 0),
    "detached": (inf, -inf, 0, -0.0),
    "exp": (inf, 0, 1, 1),
    "log": (inf, nan, -inf, -inf),
    "sqrt": (inf, nan, 0, -0.0),
    "absolute": (inf, inf, 0, 0),
    "sign": (1, -1, 0, 0),
    "power_3.0": (inf, -inf, 0, -0.0),
    "power_-0.5": (0, 0, inf, inf),
    "clip_-2.0_3.0": (3, -2, 0, -0.0),
    "leaky_relu_0.25": (inf, -inf, 0, -0.0),
    "elu_0.25": (inf, -0.25, 0, -0.0),
    "softplus": (inf, 0, math.log(2), math.log(2)),
    "log_sigmoid": (0, -inf, -math.log(2), -math.log(2)),
    "silu": (inf, nan, 0, -0.0),
    "gelu_none": (inf, nan, 0, -0.0),
    "gelu_tanh": (inf, nan, 0, -0.0),
    "sin": (nan, nan, 0, -0.0),
    "cos": (nan, nan, 1, 1),
    "tan": (nan, nan, 0, -0.0),
    "asin": (nan, nan, 0, -0.0),
    "acos": (nan, nan, math.pi / 2, math.pi / 2),
    "atan": (math.pi / 2, -math.pi / 2, 0, -0.0),
    "sinh": (inf, -inf, 0, -0.0),
    "cosh": (inf, inf, 1, 1),
    "asinh": (inf, -inf, 0, -0.0),
    "acosh": (inf, nan, nan, nan),
    "atanh": (nan, nan, 0, -0.0),
    "erf": (1, -1, 0, -0.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_infinities_zeros_and_what_is_no_number(function, dtype):
    x = np.array([inf, -inf, 0.0, -0.0, nan], dtype)
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        elementwise.apply(function.kernel, x, y, *function.arguments)
    np.testing.assert_allclose(y, [*AT_THE_BORDERS[function.name], nan], rtol=1e-6)


def test_every_function_is_in_the_table():
    assert {id(function.kernel) for function in FUNCTIONS} == {id(kernel) for kernel in UNARY}


LOWEST_SIGMOID = {"float32": -87.3, "float64": -708.3}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sigmoid_is_good_down_to_the_smallest_normal_number(dtype):
    x = np.linspace(LOWEST_SIGMOID[dtype], -80, 100).astype(dtype)
    y = np.empty_like(x)
    elementwise.apply(activations.sigmoid, x, y)
    exact = np.array([float(sigmoid(mp.mpf(v))) for v in x.tolist()])
    np.testing.assert_allclose(y, exact, rtol=4 * np.finfo(dtype).eps)


UNARY = [*unary.FUNCTIONS.values()]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "power": (3.0,), "clip": (0.8, 1.2), "leaky_relu": (0.1,), "elu": (0.7,), "gelu": ("none",),
}  # fmt: skip


# np.negative of NumPy 2.4 is wrong where values are 4 floats or 8 doubles apart.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", UNARY, ids=lambda kernel: kernel.name)
def test_columns_of_rows_of_any_width(kernel, dtype):
    arguments = ARGUMENTS.get(kernel.name, ())
    for x, dy in zip(columns(dtype, 0), columns(dtype, 1), strict=True):
        plain, plain_dy = x.copy(), dy.copy()
        expected, slope = np.empty_like(plain), np.empty_like(plain)
        kernel.forward(plain, expected, *arguments)
        kernel.forward(x, x, *arguments)
        np.testing.assert_allclose(x, expected, rtol=1e-6)
        kernel.backward(plain_dy, plain, slope, *arguments)
        x[...] = plain
        if kernel.inplace:
            kernel.backward(dy, x, dy, *arguments)
            np.testing.assert_allclose(dy, slope, rtol=1e-6)
        else:
            out = np.empty((7, 16), dtype)[:, : x.shape[1]]
            kernel.backward(dy, x, out, *arguments)
            np.testing.assert_allclose(out, slope, rtol=1e-6)
