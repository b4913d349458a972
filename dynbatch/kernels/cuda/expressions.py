"""The functions of `kernels/elementwise.py` and `kernels/binary.py` as CUDA expressions.

Kernels are generated from them. Each is one expression in the variables named here, usable in any
scope; every variable is a REAL and may be read more than once. `common.cuh` defines the functions
that C++ has not. Numbers are integers or casts to REAL, so that no float is computed as a double.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class UnaryExpression(NamedTuple):
    """y = f(x), with its static arguments a0, a1, ….

    forward:  over x and the arguments.
    backward: over dy, s and the arguments, with s the input or the output, as `reads` of the NumPy
              kernel says.
    """

    forward: str
    backward: str


class BinaryExpression(NamedTuple):
    """y = f(a, b).

    forward:    over a and b.
    backward_a: over dy, a and b; reads a and b only where the NumPy kernel says so.
    backward_b: the same for the gradient of b. Both are empty where there is no gradient.
    """

    forward: str
    backward_a: str = ""
    backward_b: str = ""


UNARY = {
    "sigmoid": UnaryExpression("sigmoid(x)", "dy * ((1 - s) * s)"),
    "tanh": UnaryExpression("tanh(x)", "dy * (1 - s * s)"),
    "relu": UnaryExpression("relu(x)", "dy * (s > 0 ? 1 : s)"),
    "negative": UnaryExpression("-x", "-dy"),
    "detached": UnaryExpression("x", "0"),
    "exp": UnaryExpression("exp(x)", "dy * s"),
    "log": UnaryExpression("log(x)", "dy / s"),
    "sqrt": UnaryExpression("sqrt(x)", "dy / s * (REAL)0.5"),
    "absolute": UnaryExpression("fabs(x)", "dy * sign(s)"),
    "power": UnaryExpression("pow(x, a0)", "(a0 == 0 ? 0 : pow(s, a0 - 1) * a0 * dy)"),
    "clip": UnaryExpression("clip(x, a0, a1)", "dy * (s >= a0 && s <= a1)"),
    "leaky_relu": UnaryExpression("(x > 0 ? x : a0 * x)", "dy * (s > 0 ? 1 : a0)"),
    "elu": UnaryExpression("(x > 0 ? x : a0 * expm1(x))", "dy * (s > 0 ? 1 : a0 * exp(s))"),
    "gelu": UnaryExpression("gelu(x)", "dy * gelu_slope(s)"),
    "gelu_tanh": UnaryExpression("gelu_tanh(x)", "dy * gelu_tanh_slope(s)"),
    "silu": UnaryExpression("x * sigmoid(x)", "dy * silu_slope(s)"),
    "softplus": UnaryExpression("softplus(x)", "dy * sigmoid(s)"),
    "log_sigmoid": UnaryExpression("log_sigmoid(x)", "dy * sigmoid(-s)"),
    "sign": UnaryExpression("sign(x)", "(dy * 0)"),
}

BINARY = {
    "add": BinaryExpression("a + b", "dy", "dy"),
    "subtract": BinaryExpression("a - b", "dy", "-dy"),
    "multiply": BinaryExpression("a * b", "dy * b", "dy * a"),
    "divide": BinaryExpression("a / b", "dy / b", "-(a / b / b * dy)"),
    "raise_to": BinaryExpression(
        "pow(a, b)",
        "(b == 0 ? 0 : pow(a, b - 1) * b * dy)",
        "(a == 0 && b >= 0 ? 0 : pow(a, b) * log(a) * dy)",
    ),
    "maximum": BinaryExpression(
        "(a > b || a != a ? a : b)",
        "(a < b ? 0 : a == b ? dy * (REAL)0.5 : dy)",
        "(b < a ? 0 : a == b ? dy * (REAL)0.5 : dy)",
    ),
    "minimum": BinaryExpression(
        "(a < b || a != a ? a : b)",
        "(a > b ? 0 : a == b ? dy * (REAL)0.5 : dy)",
        "(b > a ? 0 : a == b ? dy * (REAL)0.5 : dy)",
    ),
    "greater": BinaryExpression("(a > b)"),
    "greater_equal": BinaryExpression("(a >= b)"),
    "equal": BinaryExpression("(a == b)"),
    "not_equal": BinaryExpression("(a != b)"),
}

# Over a mask m beside a and b. Nothing of the other side comes through, not even a NaN.
WHERE = BinaryExpression("(m != 0 ? a : b)", "(m != 0 ? dy : 0)", "(m != 0 ? 0 : dy)")


def variant(name: str, arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The key in UNARY of a kernel with its static arguments, and those that are numbers.

    A text argument names a variant: gelu with "tanh" is gelu_tanh; "none" is gelu itself.
    """
    words = [text for text in arguments if isinstance(text, str) and text != "none"]
    numbers = tuple([number for number in arguments if not isinstance(number, str)])
    return "_".join([name, *words]), numbers
