"""Gated units, y = f(gate) ⊙ value: both passes in one kernel each, saving nothing but the inputs.

Gate and value are two arrays of one shape, or the halves of the rows of one array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.elementwise import share_blocks_of
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.expressions import Expression
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.kernels.unary import Argument, Function, activations

GATES = activations.sigmoid, activations.relu, activations.silu, activations.gelu
"""The functions of gates that have kernels in C and CUDA."""


@lru_cache(maxsize=64)
def unit(function: Function, arguments: tuple[Argument, ...]) -> Pair:
    """f(gate) ⊙ value, with its two gradients."""
    chosen, numbers = function.chosen(arguments)

    def gated(gate: Expression, value: Expression) -> Expression:
        return chosen(gate, *numbers) * value

    return Pair(gated, {})


@lru_cache(maxsize=64)
def _gradients(gated: Pair, wanted: tuple[bool, ...]) -> Callable[..., None]:
    """The NumPy code (dy, gate, value, dgate, dvalue), without those that are not wanted."""
    roots = {
        f"d{name}": root
        for name, root, is_wanted in zip(gated.names, gated.gradients("numpy"), wanted, strict=True)
        if is_wanted
    }
    # Of two, the value's is made last, and may be written over dy.
    kept = {"dy"} if len(roots) == 1 else set[str]()
    return numpy_printer.function("backward", ("dy", *gated.names, *roots), roots, kept)


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
    forward = unit(function, arguments).forward
    share_blocks_of(out, lambda part: forward(gate[part], value[part], out[part]))


@kernel(2, c=HOST, cuda=HOST)
def gated_backward(
    function: Function, arguments: tuple[Argument, ...], dy: Array,
    xs: tuple[Array, ...], value_first: bool, dxs: tuple[Array | None, ...],
) -> None:  # fmt: skip
    """dgate = dy ⊙ value ⊙ f'(gate) and dvalue = dy ⊙ f(gate).

    Args:
        xs:  as `gated` took them.
        dxs: overwritten with their gradients; of a pair, either may be None, and the last `dy`.
    """
    gate, value = _sides(xs, value_first)
    sides = _sides(dxs, value_first)
    wanted = [dx for dx in sides if dx is not None]
    if not wanted:
        return
    backward = _gradients(unit(function, arguments), tuple([dx is not None for dx in sides]))
    share_blocks_of(
        dy, lambda part: backward(dy[part], gate[part], value[part], *[dx[part] for dx in wanted])
    )


def _sides(arrays: tuple[Any, ...], value_first: bool) -> tuple[Any, ...]:
    """Gate and value; views of the halves of one array."""
    if len(arrays) == 2:
        return arrays
    first, second = np.split(arrays[0], 2, axis=1)
    return (second, first) if value_first else (first, second)
