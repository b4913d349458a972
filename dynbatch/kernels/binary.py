"""Functions of two values with their derivatives, element by element, in place where possible.

The second value may be one number for each segment. As in `elementwise`, large arrays are done in
blocks, and results are inf and NaN where PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import segment
from dynbatch.kernels.elementwise import blocks_of, is_flat_within, write_over
from dynbatch.kernels.runtime.dispatch import has_cuda
from dynbatch.kernels.unary import negate


@dataclass(frozen=True)
class BinaryFunction:
    """y = f(a, b); either may be a Python number.

    Args:
        name:       of the function, and of its CUDA kernel.
        forward:    (a, b, out).
        backward_a: (dy, a, b, out), the gradient of a.
        backward_b: (dy, a, b, out), the gradient of b.
        reads_a:    whether the two derivatives read a, and `reads_b` b.
        inplace:    whether `out` of a derivative may be dy.
    """

    name: str
    forward: Callable[[Any, Any, Array], Any]
    backward_a: Callable[[Array, Any, Any, Array], Any]
    backward_b: Callable[[Array, Any, Any, Array], Any]
    reads_a: bool
    reads_b: bool
    inplace: bool = True


def _pass_on(dy: Array, a: Any, b: Any, out: Array) -> None:
    if not is_flat_within(dy, out):
        np.copyto(out, dy)


def _divide_backward_b(dy: Array, a: Any, b: Any, out: Array) -> None:
    np.divide(a, b, out=out)
    np.divide(out, b, out=out)
    np.multiply(out, dy, out=out)
    negate(out, out)


def _pass_to_winner(dy: Array, wins: Any, ties: Any, out: Array) -> None:
    """The gradient goes to the value that was taken; of equal ones each gets half."""
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


def _comparison(name: str, ufunc: Any) -> BinaryFunction:
    """1 where it holds, else 0."""
    return BinaryFunction(
        name,
        lambda a, b, out: ufunc(a, b, out=out),
        _is_not_reached,
        _is_not_reached,
        False, False,
    )  # fmt: skip


add = BinaryFunction(
    "add",
    lambda a, b, out: np.add(a, b, out=out),
    _pass_on,
    _pass_on,
    False, False,
)  # fmt: skip
subtract = BinaryFunction(
    "subtract",
    lambda a, b, out: np.subtract(a, b, out=out),
    _pass_on,
    lambda dy, a, b, out: negate(dy, out),
    False, False,
)  # fmt: skip
multiply = BinaryFunction(
    "multiply",
    lambda a, b, out: np.multiply(a, b, out=out),
    lambda dy, a, b, out: np.multiply(dy, b, out=out),
    lambda dy, a, b, out: np.multiply(dy, a, out=out),
    True, True,
)  # fmt: skip
divide = BinaryFunction(
    "divide",
    lambda a, b, out: np.divide(a, b, out=out),
    lambda dy, a, b, out: np.divide(dy, b, out=out),
    _divide_backward_b,
    True, True, inplace=False,
)  # fmt: skip
raise_to = BinaryFunction(
    "raise_to",
    lambda a, b, out: np.power(a, b, out=out),
    _power_backward_a,
    _power_backward_b,
    True, True, inplace=False,
)  # fmt: skip
maximum = BinaryFunction(
    "maximum",
    lambda a, b, out: np.maximum(a, b, out=out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.less(a, b), np.equal(a, b), out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.less(b, a), np.equal(a, b), out),
    True, True,
)  # fmt: skip
minimum = BinaryFunction(
    "minimum",
    lambda a, b, out: np.minimum(a, b, out=out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.greater(a, b), np.equal(a, b), out),
    lambda dy, a, b, out: _pass_to_winner(dy, ~np.greater(b, a), np.equal(a, b), out),
    True, True,
)  # fmt: skip
greater = _comparison("greater", np.greater)
greater_equal = _comparison("greater_equal", np.greater_equal)
equal = _comparison("equal", np.equal)
not_equal = _comparison("not_equal", np.not_equal)


@has_cuda(1)
def combine(kernel: BinaryFunction, a: Array, b: Array, out: Array) -> None:
    """out = f(a, b), of one shape; `out` may be either."""
    kernel.forward(a, b, out)


@has_cuda(1)
def combine_backward(
    kernel: BinaryFunction, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> None:
    """out = dy ⊙ ∂f/∂a (side 0) or dy ⊙ ∂f/∂b (side 1); of a and b only what `kernel` reads.

    `out` is neither a nor b; a flat one may be `dy`.
    """
    differentiate = (kernel.backward_a, kernel.backward_b)[side]
    if out.size <= segment.BLOCK and (kernel.inplace or not is_flat_within(dy, out)):
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
def where(mask: Array, a: Array, b: Array, out: Array) -> None:
    """out = a where the mask is not 0, else b, all of one shape; `out` may be any of them."""
    for part in blocks_of(out) if out.size else ():
        choose(mask[part], a[part], b[part], out[part])


@has_cuda()
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
    """The number that stands beside each element; one for all where all segments share it."""
    if (numbers == numbers[0]).all():
        return numbers[0]
    return segment.rows_of(numbers, offsets, part)


def _in_blocks(
    kernel: BinaryFunction, dy: Array, out: Array, backward: Callable[[slice, Array], None]
) -> None:
    if not kernel.inplace and is_flat_within(dy, out):
        write_over(out, backward)
        return
    for part in blocks_of(out) if out.size else ():
        backward(part, out[part])
