"""Values in bfloat16: rounding in place, and the 16 bits that are kept of them for a while.

A bfloat16 is the upper half of a float32. `precision.round_to` tells how numbers are rounded.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import ELEMENTS, kernel
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves
from dynbatch.kernels.segment import blocks


@kernel(c=ELEMENTS, cuda=ELEMENTS)
def round_values(x: Array) -> None:
    """x = the nearest bfloat16 of each number, in place.

    Args:
        x: (N,) float32.
    """
    for part in blocks(x.size, 1):
        x[part] = round_to(x[part], SHORT)


@kernel(c=ELEMENTS, cuda=ELEMENTS)
def narrow(x: Array, out: Array) -> None:
    """Round x as `round_values`, in place, and out = the upper halves of its numbers.

    Args:
        x:   (N,) float32.
        out: (N,) uint16, overwritten; it shares no memory with x.
    """
    for part in blocks(x.size, 1):
        x[part] = round_to(x[part], SHORT)
        out[part] = upper_halves(x[part])


@kernel(c=ELEMENTS, cuda=ELEMENTS)
def widen(x: Array, out: Array) -> None:
    """out = the numbers whose upper halves are x: undoes `narrow`.

    Args:
        x:   (N,) uint16.
        out: (N,) float32, overwritten; it shares no memory with x.
    """
    for part in blocks(x.size, 1):
        np.left_shift(x[part], 16, out=out[part].view(np.uint32), dtype=np.uint32)
