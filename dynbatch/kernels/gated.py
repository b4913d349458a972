"""Gated units, y = f(gate) ⊙ value: both passes in one kernel each, saving nothing but the inputs.

Gate and value are two arrays of one shape, or the halves of the rows of one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.elementwise import share_blocks_of
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.unary import Argument, Function, activations

GATES = activations.sigmoid, activations.relu, activations.silu, activations.gelu
"""The functions of gates that have kernels in C and CUDA."""


@kernel(4, c=HOST, cuda=HOST)
def gated(
    function: Function, arguments: tuple[Argument, ...], xs: tuple[Array, ...],
    value_first: bool, out: Array,
) -> None:  # fmt: skip
    """out = f(gate) ⊙ value.

    Args:
        function:    f.
        arguments:   its static arguments.
        xs:          gate and value, of the shape of `out`; or one array (N, 2D), its halves.
        value_first: whether the first half is the value.
        out:         (N, D), or (elements,), overwritten; may be gate or value.
    """
    gate, value = _sides(xs, value_first)

    def work(part: slice) -> None:
        made = np.empty_like(out[part])
        function.forward(gate[part], made, *arguments)
        np.multiply(made, value[part], out=out[part])

    share_blocks_of(out, work)


@kernel(2, c=HOST, cuda=HOST)
def gated_backward(
    function: Function, arguments: tuple[Argument, ...], dy: Array,
    xs: tuple[Array, ...], value_first: bool, dxs: tuple[Array | None, ...],
) -> None:  # fmt: skip
    """dgate = dy ⊙ value ⊙ f'(gate) and dvalue = dy ⊙ f(gate).

    Args:
        xs:  as `gated` took them.
        dxs: overwritten with their gradients; of a pair, one may be None, and the last may be `dy`.
    """
    gate, value = _sides(xs, value_first)
    dgate, dvalue = _sides(dxs, value_first)

    def work(part: slice) -> None:
        y, slope = function.with_slope(gate[part], *arguments)
        if dgate is not None:
            np.multiply(slope, value[part], out=slope)
            np.multiply(slope, dy[part], out=dgate[part])
        if dvalue is not None:  # last: it may be written over dy
            np.multiply(y, dy[part], out=dvalue[part])

    share_blocks_of(dy, work)


def _sides(arrays: tuple[Any, ...], value_first: bool) -> tuple[Any, ...]:
    """Gate and value; views of the halves of one array."""
    if len(arrays) == 2:
        return arrays
    first, second = np.split(arrays[0], 2, axis=1)
    return (second, first) if value_first else (first, second)
