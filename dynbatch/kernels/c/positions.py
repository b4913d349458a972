"""`kernels.positions` in C: rotary positions in one pass over the rows."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.calls import print_call
from dynbatch.kernels.positions import Angles, longest
from dynbatch.kernels.runtime.dispatch import ROWS

# Elements that take a thread about 40 µs.
WORTH_A_THREAD = 1 << 17

_rotary = print_call("positions.c", "rotary", ROWS, least=WORTH_A_THREAD)


def rotary(
    x: Array, offsets: Array, starts: Array, angles: Angles, heads: int, is_interleaved: bool,
    is_inverse: bool, out: Array,
) -> Any:  # fmt: skip
    turns = angles.table(longest(offsets, starts), x.dtype)
    features, sign = x.shape[1] // heads, -1.0 if is_inverse else 1.0
    return _rotary(
        x, out, offsets, starts, turns, turns.shape[2], sign, heads, features, angles.width,
        is_interleaved,
    )  # fmt: skip
