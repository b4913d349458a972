"""`kernels.binary` in C, in elementwise.c and loops.c: gradients and choices of several passes."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.elementwise import run, run_loop, share
from dynbatch.kernels.c.printed import BINARY
from dynbatch.kernels.elementwise import is_flat_within
from dynbatch.kernels.scalar.pair import Pair


def combine(kernel: Pair, a: Array, b: Array, out: Array) -> Any:
    return share("add", (a, b, out)) if kernel.name == "add" else NotImplemented


def combine_backward(
    kernel: Pair, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> Any:
    if kernel.name == "add" and not is_flat_within(dy, out):
        return share("copy", (dy, out))
    name = f"{kernel.name}_back_{kernel.names[side]}"
    if name not in BINARY or a is None or b is None:
        return NotImplemented
    return run_loop(name, (dy, a, b, out))


def where(mask: Array, a: Array, b: Array, out: Array) -> Any:
    return run("where", (mask, a, b, out))


def where_backward(dy: Array, mask: Array, out: Array, side: int) -> Any:
    return run("where_backward", (dy, mask, out), (side,))
