"""Elementwise functions of two values with their derivatives, in place where possible.

Each is one definition, from which its code for NumPy, C and CUDA and its rule on nodes are made:
see `kernels.scalar`. The second value may be one number for each segment. As in `elementwise`,
large arrays are done in blocks, and results are inf and NaN where PyTorch's are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import segment
from dynbatch.kernels.elementwise import (
    blocks_of,
    is_flat_within,
    share_blocks_of,
    write_over,
)
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.scalar.expressions import Expression, make
from dynbatch.kernels.scalar.pair import Pair, pair

FUNCTIONS: dict[str, Pair] = {}


def _primitive(name: str, op: str = "") -> Pair:
    def body(a: Expression, b: Expression) -> Expression:
        return make(op or name, a, b)

    body.__name__ = body.__qualname__ = name
    return pair(FUNCTIONS)(body)


def _comparison(name: str) -> Pair:
    """1 where it holds, else 0."""

    def body(a: Expression, b: Expression) -> Expression:
        return make("where", make(name, a, b), 1, 0)

    body.__name__ = body.__qualname__ = name
    return pair(FUNCTIONS)(body)


add, subtract, multiply, divide, maximum, minimum = map(
    _primitive, ("add", "subtract", "multiply", "divide", "maximum", "minimum")
)
raise_to = _primitive("raise_to", "pow")
greater, greater_equal, equal, not_equal = map(
    _comparison, ("greater", "greater_equal", "equal", "not_equal")
)


@kernel(1, c=HOST, cuda=HOST)
def combine(kernel: Pair, a: Array, b: Array, out: Array) -> None:
    """out = f(a, b), of one shape; `out` may be either."""
    if out.size <= segment.SUMS_WORTH_A_THREAD:
        kernel.forward(a, b, out)
        return
    share_blocks_of(
        out,
        lambda part: kernel.forward(a[part], b[part], out[part]),
        segment.SUMS_WORTH_A_THREAD,
    )


@kernel(1, c=HOST, cuda=HOST)
def combine_backward(
    kernel: Pair, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> None:
    """out = dy ⊙ ∂f/∂a (side 0) or dy ⊙ ∂f/∂b (side 1); a or b may be None if not read.

    `out` is neither a nor b; a flat one may be `dy`.
    """
    if kernel.passes[side] and is_flat_within(dy, out):
        return
    differentiate = kernel.backward[side]
    if out.size <= segment.SUMS_WORTH_A_THREAD and (kernel.inplace or not is_flat_within(dy, out)):
        differentiate(dy, a, b, out)
        return

    def backward(part: slice, room: Array) -> None:
        first, second = [None if array is None else array[part] for array in (a, b)]
        differentiate(dy[part], first, second, room)

    _in_blocks(kernel, dy, out, backward)


@kernel(1, cuda=HOST)
def combine_number(
    kernel: Pair, x: Array, numbers: Array, offsets: Array, out: Array, side: int
) -> None:
    """out_i = f(x_i, numbers[k]) for the elements i of segment k; f(numbers[k], x_i) for side 1.

    Args:
        out:  (N,), overwritten; may be `x`.
        side: which of f's two values x is.
    """
    for part in blocks_of(out) if out.size else ():
        kernel.forward(*_in_order(x[part], _beside(numbers, offsets, part), side), out[part])


@kernel(1, cuda=HOST)
def combine_number_backward(
    kernel: Pair, dy: Array, x: Array | None, numbers: Array, offsets: Array, out: Array,
    side: int,
) -> None:  # fmt: skip
    """out = dy ⊙ ∂f/∂x, as `combine_number`; x is None where that does not read it.

    `out` is not x; a flat one may be `dy`.
    """

    def backward(part: slice, room: Array) -> None:
        part_of_x, beside = None if x is None else x[part], _beside(numbers, offsets, part)
        kernels = kernel.backward if np.ndim(beside) else kernel.backward_with_number
        kernels[side](dy[part], *_in_order(part_of_x, beside, side), room)

    _in_blocks(kernel, dy, out, backward)


@kernel(c=HOST, cuda=HOST)
def where(mask: Array, a: Array, b: Array, out: Array) -> None:
    """out = a where the mask is not 0, else b, all of one shape; `out` may be any of them."""
    for part in blocks_of(out) if out.size else ():
        choose(mask[part], a[part], b[part], out[part])


@kernel(c=HOST, cuda=HOST)
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
    kernel: Pair, dy: Array, out: Array, backward: Callable[[slice, Array], None]
) -> None:
    if not kernel.inplace and is_flat_within(dy, out):
        write_over(out, backward)
        return
    share_blocks_of(out, lambda part: backward(part, out[part]), segment.SUMS_WORTH_A_THREAD)
