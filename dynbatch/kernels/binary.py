"""Elementwise functions of two values with their derivatives, in place where possible.

A function is declared once, with the CUDA expressions from which its kernels are generated. The
second value may be one number for each segment. As in `elementwise`, large arrays are done in
blocks, and results are inf and NaN where PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import segment
from dynbatch.kernels.elementwise import (
    blocks_of,
    is_flat_within,
    share_blocks_of,
    write_over,
)
from dynbatch.kernels.runtime.dispatch import has_c, has_cuda
from dynbatch.kernels.unary.arithmetic import negative


class BinaryExpression(NamedTuple):
    """CUDA expressions of y = f(a, b), each a REAL; see `kernels/cuda/expressions.py`.

    forward:    over a and b.
    backward_a: over dy, a and b; reads a and b only where the NumPy code does.
    backward_b: likewise, of the gradient of b. Both are empty where there is no gradient.
    """

    forward: str
    backward_a: str = ""
    backward_b: str = ""


@dataclass(frozen=True)
class BinaryFunction:
    """y = f(a, b); either may be a Python number.

    Args:
        name:       of the function, and of its CUDA kernel.
        ufunc:      f.
        backward_a: (dy, a, b, out), the gradient of a.
        backward_b: (dy, a, b, out), the gradient of b.
        cuda:       the CUDA expressions of f and of both gradients.
        reads_a:    whether the two derivatives read a, and `reads_b` b.
        inplace:    whether `out` of a derivative may be dy.
    """

    name: str
    ufunc: np.ufunc
    backward_a: Callable[[Array, Any, Any, Array], object]
    backward_b: Callable[[Array, Any, Any, Array], object]
    cuda: BinaryExpression
    reads_a: bool = True
    reads_b: bool = True
    inplace: bool = True

    def __post_init__(self) -> None:
        FUNCTIONS[self.name] = self

    def forward(self, a: Array | float, b: Array | float, out: Array) -> None:
        """out = f(a, b); `out` may be either."""
        self.ufunc(a, b, out=out)


FUNCTIONS: dict[str, BinaryFunction] = {}


def _pass_on(dy: Array, a: Any, b: Any, out: Array) -> None:
    if not is_flat_within(dy, out):
        np.copyto(out, dy)


def _divide_backward_b(dy: Array, a: Any, b: Any, out: Array) -> None:
    np.divide(a, b, out=out)
    np.divide(out, b, out=out)
    np.multiply(out, dy, out=out)
    negative.forward(out, out)


def _pass_to_winner(dy: Array, wins: Any, ties: Any, out: Array) -> None:
    """The gradient goes to the value that was chosen; equal values get half each."""
    _pass_on(dy, None, None, out)
    np.multiply(out, 0.5, out=out, where=ties)
    np.copyto(out, 0, where=~wins & ~ties)


def _power_backward_a(dy: Array, a: Any, b: Any, out: Array) -> None:
    np.power(a, np.subtract(b, 1), out=out)
    np.multiply(out, b, out=out)
    np.copyto(out, 0, where=np.equal(b, 0))  # also at a = 0, where 0 · a^-1 is not a number
    np.multiply(out, dy, out=out)


def _power_backward_b(dy: Array, a: Any, b: Any, out: Array) -> None:
    np.power(a, b, out=out)
    np.multiply(out, np.log(a), out=out)
    np.copyto(out, 0, where=np.equal(a, 0) & np.greater_equal(b, 0))  # 0^b is 0, or 1, nearby
    np.multiply(out, dy, out=out)


def _is_not_reached(dy: Array, a: Any, b: Any, out: Array) -> None:
    out[...] = 0


def _comparison(name: str, ufunc: np.ufunc, sign: str) -> BinaryFunction:
    """1 where it holds, else 0."""
    expression = BinaryExpression(f"(a {sign} b)")
    return BinaryFunction(name, ufunc, _is_not_reached, _is_not_reached, expression, False, False)


add = BinaryFunction(
    "add", np.add, _pass_on, _pass_on, BinaryExpression("a + b", "dy", "dy"), False, False
)
subtract = BinaryFunction(
    "subtract",
    np.subtract,
    _pass_on,
    lambda dy, a, b, out: negative.forward(dy, out),
    BinaryExpression("a - b", "dy", "-dy"),
    False, False,
)  # fmt: skip
multiply = BinaryFunction(
    "multiply",
    np.multiply,
    lambda dy, a, b, out: np.multiply(dy, b, out=out),
    lambda dy, a, b, out: np.multiply(dy, a, out=out),
    BinaryExpression("a * b", "dy * b", "dy * a"),
)
divide = BinaryFunction(
    "divide",
    np.divide,
    lambda dy, a, b, out: np.divide(dy, b, out=out),
    _divide_backward_b,
    BinaryExpression("a / b", "dy / b", "-(a / b / b * dy)"),
    inplace=False,
)
raise_to = BinaryFunction(
    "raise_to",
    np.power,
    _power_backward_a,
    _power_backward_b,
    BinaryExpression(
        "pow(a, b)",
        "(b == 0 ? 0 : pow(a, b - 1) * b * dy)",
        "(a == 0 && b >= 0 ? 0 : pow(a, b) * log(a) * dy)",
    ),
    inplace=False,
)
maximum = BinaryFunction(
    "maximum",
    np.maximum,
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.less(a, b), np.equal(a, b), out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.less(b, a), np.equal(a, b), out),
    BinaryExpression(
        "(a > b || a != a ? a : b)",
        "(a < b ? 0 : a == b ? dy * (REAL)0.5 : dy)",
        "(b < a ? 0 : a == b ? dy * (REAL)0.5 : dy)",
    ),
)
minimum = BinaryFunction(
    "minimum",
    np.minimum,
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.greater(a, b), np.equal(a, b), out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.greater(b, a), np.equal(a, b), out),
    BinaryExpression(
        "(a < b || a != a ? a : b)",
        "(a > b ? 0 : a == b ? dy * (REAL)0.5 : dy)",
        "(b > a ? 0 : a == b ? dy * (REAL)0.5 : dy)",
    ),
)
greater = _comparison("greater", np.greater, ">")
greater_equal = _comparison("greater_equal", np.greater_equal, ">=")
equal = _comparison("equal", np.equal, "==")
not_equal = _comparison("not_equal", np.not_equal, "!=")

# Over a mask m beside a and b. Nothing of the other side comes through, not even a NaN.
WHERE = BinaryExpression("(m != 0 ? a : b)", "(m != 0 ? dy : 0)", "(m != 0 ? 0 : dy)")


@has_cuda(1)
@has_c
def combine(kernel: BinaryFunction, a: Array, b: Array, out: Array) -> None:
    """out = f(a, b), of one shape; `out` may be either."""
    if out.size <= segment.SUMS_WORTH_A_THREAD:
        kernel.forward(a, b, out)
        return
    share_blocks_of(
        out,
        lambda part: kernel.forward(a[part], b[part], out[part]),
        segment.SUMS_WORTH_A_THREAD,
    )


@has_cuda(1)
@has_c
def combine_backward(
    kernel: BinaryFunction, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> None:
    """out = dy ⊙ ∂f/∂a (side 0) or dy ⊙ ∂f/∂b (side 1); a or b may be None if not read.

    `out` is neither a nor b; a flat one may be `dy`.
    """
    differentiate = (kernel.backward_a, kernel.backward_b)[side]
    if out.size <= segment.SUMS_WORTH_A_THREAD and (kernel.inplace or not is_flat_within(dy, out)):
        differentiate(dy, a, b, out)
        return

    def backward(part: slice, room: Array) -> None:
        first, second = [None if array is None else array[part] for array in (a, b)]
        differentiate(dy[part], first, second, room)

    _in_blocks(kernel, dy, out, backward)


@has_cuda(1)
def combine_number(
    kernel: BinaryFunction, x: Array, numbers: Array, offsets: Array, out: Array, side: int
) -> None:
    """out_i = f(x_i, numbers[k]) for the elements i of segment k; f(numbers[k], x_i) for side 1.

    Args:
        out:  (N,), overwritten; may be `x`.
        side: which of f's two values x is.
    """
    for part in blocks_of(out) if out.size else ():
        kernel.forward(*_in_order(x[part], _beside(numbers, offsets, part), side), out[part])


@has_cuda(1)
def combine_number_backward(
    kernel: BinaryFunction, dy: Array, x: Array | None, numbers: Array, offsets: Array, out: Array,
    side: int,
) -> None:  # fmt: skip
    """out = dy ⊙ ∂f/∂x, as `combine_number`; x is None where that does not read it.

    `out` is not x; a flat one may be `dy`.
    """
    differentiate = (kernel.backward_a, kernel.backward_b)[side]

    def backward(part: slice, room: Array) -> None:
        part_of_x = None if x is None else x[part]
        differentiate(dy[part], *_in_order(part_of_x, _beside(numbers, offsets, part), side), room)

    _in_blocks(kernel, dy, out, backward)


@has_cuda()
@has_c
def where(mask: Array, a: Array, b: Array, out: Array) -> None:
    """out = a where the mask is not 0, else b, all of one shape; `out` may be any of them."""
    for part in blocks_of(out) if out.size else ():
        choose(mask[part], a[part], b[part], out[part])


@has_cuda()
@has_c
def where_backward(dy: Array, mask: Array, out: Array, side: int) -> None:
    """out = dy where the mask chose a (side 0), or b (side 1), else 0; `out` may be `dy`."""
    for part in blocks_of(out) if out.size else ():
        choose_backward(dy[part], mask[part], out[part], side)


def choose(mask: Array, a: Array, b: Array, out: Array) -> None:
    """`where` of one block."""
    out[...] = np.where(mask != 0, a, b)


def choose_backward(dy: Array, mask: Array, out: Array, side: int) -> None:
    """`where_backward` of one block."""
    out[...] = np.where((mask == 0) == bool(side), dy, 0)


def _in_order(x: Any, other: Any, side: int) -> tuple[Any, Any]:
    return (other, x) if side else (x, other)


def _beside(numbers: Array, offsets: Array, part: slice) -> Any:
    """The number for each element; a single one if all segments share it."""
    if (numbers == numbers[0]).all():
        return numbers[0]
    return segment.rows_of(numbers, offsets, part)


def _in_blocks(
    kernel: BinaryFunction, dy: Array, out: Array, backward: Callable[[slice, Array], None]
) -> None:
    if not kernel.inplace and is_flat_within(dy, out):
        write_over(out, backward)
        return
    share_blocks_of(out, lambda part: backward(part, out[part]), segment.SUMS_WORTH_A_THREAD)
