"""The distance of elementwise functions, and of derivatives, from the truth, in last places."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from dynbatch.kernels import elementwise
from dynbatch.kernels.scalar.expressions import Expression, parts, substitute, variable
from dynbatch.kernels.unary import FUNCTIONS, Argument, Function, activations
from tests.kernels.columns import columns
from tests.kernels.scalar.exact import errors, is_number, mp, sigmoid, size_of, value_of
from tests.kernels.unary.cases import EVERY_CHOICE, EVERY_NAME, choices, name_of

every_choice = pytest.mark.parametrize(("function", "arguments"), EVERY_CHOICE, ids=EVERY_NAME)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


class Accuracy(NamedTuple):
    """The greatest errors in units of the last place: of a value, and of a derivative.

    Those of a derivative are relative to the terms that it is the sum of.
    `gate` gives, of x, what exp is taken of: each half unit that it is wrong by counts as many
    units of the result as the gate is large. Beyond ±40 the result is 0 or x.
    """

    value: float = 3
    slope: float = 3
    gate: Callable[[Any], Any] = np.zeros_like

    def at(self, x: Any, most: float) -> Any:
        return most + GATE_ROUNDINGS / 2 * abs(self.gate(np.clip(x.astype(np.float64), -40, 40)))


GATE_ROUNDINGS = 6  # of gelu_tanh's: two constants, three products and a sum


ACCURACY = {
    "silu": Accuracy(3, 16),
    "gelu_none": Accuracy(6, 6),
    "gelu_tanh": Accuracy(3, 24, lambda x: 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)),
    "erf": Accuracy(4, 5),
}


def accuracy_of(function: Function, arguments: tuple[Argument, ...]) -> Accuracy:
    """The accuracy demanded of a function; of a slope that is a sum of functions somewhat less."""
    steps = parts(function.gradient())
    is_sum = any([step.op == "add" and all([x.operands for x in step.operands]) for step in steps])
    return ACCURACY.get(name_of(function, arguments), Accuracy(3, 24 if is_sum else 3))


def points(dtype: Any) -> Any:
    """Both signs, from subnormal numbers to near the greatest; most from 0.01 to 1000."""
    finite = np.finfo(dtype)
    sizes = np.concatenate(
        [
            np.geomspace(float(finite.tiny), float(finite.max) / 2, 24),
            np.geomspace(0.01, 1000, 80),
            [finite.smallest_subnormal, finite.tiny / 2, 0.5, 1, 2, 16, 17, 38, 87, 88.5, 700, 708],
        ]
    ).astype(dtype)
    return np.concatenate([sizes, -sizes])


def numbered(
    function: Function, arguments: tuple[Argument, ...]
) -> tuple[Function, dict[str, Any]]:
    chosen, numbers = function.chosen(arguments)
    values = [mp.mpf(number) for number in numbers]
    return chosen, dict(zip(chosen.names_of_arguments, values, strict=True))


def slope_of(function: Function) -> Expression:
    """The derivative, over what it reads, s."""
    saved = "y" if function.reads == "output" else "x"
    return substitute(function.gradient(), variable(saved), variable("s"))


@every_dtype
@every_choice
def test_values_and_derivatives_are_good_to_the_last_places(function, arguments, dtype):
    chosen, numbers = numbered(function, arguments)
    body, allowed = chosen.value(), accuracy_of(function, arguments)
    x = np.array(
        [v for v in points(dtype) if is_number(value_of(body, x=mp.mpf(float(v)), **numbers))]
    )
    y, dx, dy = np.empty_like(x), np.empty_like(x), np.ones_like(x)
    with np.errstate(all="ignore"):
        elementwise.apply(function, x, y, *arguments)
        saved = {"input": x, "output": y, "none": dy}[function.reads]
        elementwise.apply_backward(function, dy, saved, dx, *arguments)
    truth = [value_of(body, x=mp.mpf(v), **numbers) for v in x.tolist()]
    wrong = errors(y, truth, truth)
    over = wrong / allowed.at(x, allowed.value)
    assert over.max() <= 1, f"{wrong[over.argmax()]:.1f} units at {x[over.argmax()]}"
    root, one = slope_of(chosen), {"dy": mp.mpf(1), **numbers}
    held = np.array([is_number(value_of(root, s=mp.mpf(float(v)), **one)) for v in saved])
    held &= np.isfinite(saved) & ((saved != 0) | (function.reads != "output"))
    given = [{"s": mp.mpf(v), **one} for v in saved[held].tolist()]
    slopes, sizes = (
        [value_of(root, **each) for each in given],
        [size_of(root, **each) for each in given],
    )
    if function is activations.tanh:  # PyTorch too takes 1 - y², which near 1 is as good as y is
        sizes = [mp.mpf(1) for _ in sizes]
    wrong = errors(dx[held], slopes, sizes)
    over = wrong / allowed.at(x[held], allowed.slope)
    assert over.max() <= 1, f"{wrong[over.argmax()]:.1f} units at {x[held][over.argmax()]}"


STRAIGHT_THROUGH = {"detached", "round", "floor", "ceil"}  # slopes that are chosen, 0 or 1


@every_choice
def test_a_slope_is_the_limit_of_differences(function, arguments):
    chosen, numbers = numbered(function, arguments)
    body, root, step = chosen.value(), slope_of(chosen), mp.mpf("1e-40")
    if not function.derivative or function.name in STRAIGHT_THROUGH:
        return
    with mp.workdps(150):
        for x in (
            mp.mpf(v) * sign for v in (1e-3, 0.3, 0.97, 2.1, 17, 90, 1e3, 1e6) for sign in (1, -1)
        ):
            ahead, behind = [value_of(body, x=x + h, **numbers) for h in (step, -step)]
            if not (is_number(ahead) and is_number(behind)):
                continue
            read = value_of(body, x=x, **numbers) if chosen.reads == "output" else x
            slope = value_of(root, s=read, dy=mp.mpf(1), **numbers)
            # Constants have 16 digits.
            error = abs(slope - (ahead - behind) / (2 * step))
            assert error <= abs(slope) * mp.mpf("1e-14") + mp.mpf("1e-60"), x


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
    "round": (inf, -inf, 0, -0.0),
    "floor": (inf, -inf, 0, -0.0),
    "ceil": (inf, -inf, 0, -0.0),
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


BY_NAME = dict(zip(EVERY_NAME, EVERY_CHOICE, strict=True))


@every_dtype
@pytest.mark.parametrize("name", AT_THE_BORDERS)
def test_infinities_zeros_and_what_is_no_number(name, dtype):
    function, arguments = BY_NAME[name]
    x = np.array([inf, -inf, 0.0, -0.0, nan], dtype)
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        elementwise.apply(function, x, y, *arguments)
    np.testing.assert_allclose(y, [*AT_THE_BORDERS[name], nan], rtol=1e-6)


LOWEST_SIGMOID = {"float32": -87.3, "float64": -708.3}


@every_dtype
def test_the_sigmoid_is_good_down_to_the_smallest_normal_number(dtype):
    x = np.linspace(LOWEST_SIGMOID[dtype], -80, 100).astype(dtype)
    y = np.empty_like(x)
    elementwise.apply(activations.sigmoid, x, y)
    exact = np.array([float(sigmoid(mp.mpf(v))) for v in x.tolist()])
    np.testing.assert_allclose(y, exact, rtol=4 * np.finfo(dtype).eps)


# np.negative of NumPy 2.4 is wrong where values are 4 floats or 8 doubles apart.
@every_dtype
@pytest.mark.parametrize("kernel", FUNCTIONS.values(), ids=lambda kernel: kernel.name)
def test_columns_of_rows_of_any_width(kernel, dtype):
    arguments = choices(kernel)[0]
    for x, dy in zip(columns(dtype, 0), columns(dtype, 1), strict=True):
        plain, plain_dy = x.copy(), dy.copy()
        expected, slope = np.empty_like(plain), np.empty_like(plain)
        out = dy if kernel.inplace else np.empty((7, 16), dtype)[:, : x.shape[1]]
        with np.errstate(all="ignore"):
            kernel.forward(plain, expected, *arguments)
            kernel.forward(x, x, *arguments)
            np.testing.assert_allclose(x, expected, rtol=1e-6)
            kernel.backward(plain_dy, plain, slope, *arguments)
            x[...] = plain
            kernel.backward(dy, x, out, *arguments)
            np.testing.assert_allclose(out, slope, rtol=1e-6)
