"""The functions of `kernels/unary.py` and `kernels/binary.py` as CUDA expressions.

Kernels are generated from them, and the loops of cells. Each is one expression in the variables
named here, usable in any scope; every variable is a REAL and may be read more than once.
`common.cuh` defines the functions that C++ has not. Numbers are integers or casts to REAL, so that
no float is computed as a double.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dynbatch.kernels.unary import FUNCTIONS, Argument


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


def _unary() -> Iterator[tuple[str, UnaryExpression]]:
    for name, function in FUNCTIONS.items():
        yield name, UnaryExpression(function.cuda_forward, function.cuda_backward)
        for word, expressions in function.cuda_variants.items():
            yield f"{name}_{word}", UnaryExpression(*expressions)


UNARY = dict(_unary())

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


def variant(name: str, arguments: Sequence[Argument]) -> tuple[str, tuple[float, ...]]:
    """The key in UNARY of a kernel with its static arguments, and those that are numbers.

    A text argument names a variant: gelu with "tanh" is gelu_tanh; "none" is gelu itself.
    """
    words = [text for text in arguments if isinstance(text, str) and text != "none"]
    numbers = tuple([number for number in arguments if not isinstance(number, str)])
    return "_".join([name, *words]), numbers
