"""Launches of functions of two values; `elementwise.py` generates the kernels."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.kernels.cuda.elementwise import launch_generated, launch_with_numbers
from dynbatch.kernels.scalar.pair import Pair


def combine(kernel: Pair, a: Array, b: Array, out: Array) -> None:
    launch_generated(kernel.name, (a, b), out)


def combine_backward(kernel: Pair, dy: Array, a: Array, b: Array, out: Array, side: int) -> None:
    """out = dy ⊙ ∂f/∂a (side 0) or dy ⊙ ∂f/∂b (side 1); nothing to do where that is dy itself."""
    if not (kernel.passes[side] and device_address(dy) == device_address(out)):
        launch_generated(f"{kernel.name}_backward_{'ab'[side]}", (dy, a, b), out)


def combine_number(
    kernel: Pair, x: Array, numbers: Array, offsets: Array, out: Array, side: int
) -> None:
    launch_with_numbers(f"{kernel.name}_{'ab'[side]}_with_number", (x,), numbers, offsets, out)


def combine_number_backward(
    kernel: Pair, dy: Array, x: Array, numbers: Array, offsets: Array, out: Array,
    side: int,
) -> None:  # fmt: skip
    name = f"{kernel.name}_{'ab'[side]}_with_number_backward"
    launch_with_numbers(name, (dy, x), numbers, offsets, out)


def where(mask: Array, a: Array, b: Array, out: Array) -> None:
    launch_generated("where", (mask, a, b), out)


def where_backward(dy: Array, mask: Array, out: Array, side: int) -> None:
    launch_generated(f"where_backward_{'ab'[side]}", (dy, mask), out)
