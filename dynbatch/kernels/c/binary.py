"""`kernels.binary` in C, in elementwise.c and loops.c: gradients and choices of several passes."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels import binary
from dynbatch.kernels.c.elementwise import run, run_loop, share
from dynbatch.kernels.c.printed import GRADIENTS_OF_TWO, VALUES_OF_TWO
from dynbatch.kernels.elementwise import is_flat_within
from dynbatch.kernels.scalar.pair import Pair


def combine(kernel: Pair, a: Array, b: Array, out: Array) -> Any:
    if kernel is binary.add:
        return share("add", a, b, out)
    name = VALUES_OF_TWO.get(kernel)
    return run_loop(name, a, b, out) if name else NotImplemented


def combine_backward(
    kernel: Pair, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> Any:
    if kernel.passes[side] and is_flat_within(dy, out):
        return None
    if kernel is binary.add:
        return share("copy", dy, out)
    name = GRADIENTS_OF_TWO[side].get(kernel)
    if name is None or a is None or b is None:
        return NotImplemented
    return run_loop(name, dy, a, b, out)


def where(mask: Array, a: Array, b: Array, out: Array) -> Any:
    return run("where", mask, a, b, out)


def where_backward(dy: Array, mask: Array, out: Array, side: int) -> Any:
    return run("where_backward", side, dy, mask, out)
