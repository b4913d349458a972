"""`kernels.binary` in C, in the text of elementwise.c: gradients and choices of several passes."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.binary import BinaryFunction
from dynbatch.kernels.c.elementwise import numbers_in, run, share
from dynbatch.kernels.elementwise import is_flat_within

BACKWARD = tuple([numbers_in("elementwise.c", f"back_{side}") for side in "ab"])


def combine(kernel: BinaryFunction, a: Array, b: Array, out: Array) -> Any:
    return share("add", (a, b, out)) if kernel.name == "add" else NotImplemented


def combine_backward(
    kernel: BinaryFunction, dy: Array, a: Array | None, b: Array | None, out: Array, side: int
) -> Any:
    if kernel.name == "add" and not is_flat_within(dy, out):
        return share("copy", (dy, out))
    known = BACKWARD[side]
    if kernel.name not in known or a is None or b is None:
        return NotImplemented
    return run("combine_backward", (dy, a, b, out), (known[kernel.name],))


def where(mask: Array, a: Array, b: Array, out: Array) -> Any:
    return run("where", (mask, a, b, out))


def where_backward(dy: Array, mask: Array, out: Array, side: int) -> Any:
    return run("where_backward", (dy, mask, out), (side,))
