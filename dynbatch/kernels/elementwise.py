"""Elementwise functions of one value on whole arrays, in place where possible.

Large arrays are done in blocks: several passes over a block stay in the cache, and temporary memory
                                 is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import segment
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.runtime.precision import widened
from dynbatch.kernels.unary import Argument, Function


@kernel(1, c=HOST, cuda=HOST)
def apply(kernel: Function, x: Array, out: Array, *arguments: Argument) -> None:
    """out = f(x; arguments), of any one shape; `out` may be `x`."""
    if out.size <= segment.WORTH_A_THREAD:
        kernel.forward(x, out, *arguments)
        return
    share_blocks_of(out, lambda part: kernel.forward(x[part], out[part], *arguments))


@kernel(1, c=HOST, cuda=HOST)
def apply_backward(
    kernel: Function, dy: Array, saved: Array, out: Array, *arguments: Argument
) -> None:
    """out = dy ⊙ f'(saved; arguments), with saved as `kernel.reads` says.

    `out` is not `saved`; a flat one may be `dy`. On a CPU saved may be uint16, the upper halves of
    numbers, if it is an input.
    """

    def backward(part: slice, room: Array) -> None:
        kernel.backward(dy[part], widened(saved[part]), room, *arguments)

    if not kernel.inplace and is_flat_within(dy, out):
        write_over(out, backward)
    elif out.size <= segment.WORTH_A_THREAD:
        kernel.backward(dy, widened(saved), out, *arguments)
    else:
        share_blocks_of(out, lambda part: backward(part, out[part]))


def is_flat_within(dy: Array, out: Array) -> bool:
    """Whether `out` is flat and shares the memory of `dy`."""
    return out.ndim == 1 and np.may_share_memory(dy, out)


def blocks_of(out: Array) -> Iterator[slice]:
    """Parts of an array of one element or more."""
    return segment.blocks(len(out), out.size // len(out))


def share_blocks_of(
    out: Array, work: Callable[[slice], object], least: int = segment.WORTH_A_THREAD
) -> None:
    """Run `work` on parts of an array, on several threads where it is large enough."""
    if out.size:
        segment.share_blocks(len(out), out.size // len(out), work, least)


def write_over(out: Array, function: Callable[[slice, Array], None]) -> None:
    """Compute in place although the function reads its input again: block by block, then copy."""

    def work(part: slice) -> None:
        made = np.empty_like(out[part])
        function(part, made)
        np.copyto(out[part], made)

    share_blocks_of(out, work)
