"""`kernels.losses.ctc` in C, a sentence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.losses.ctc import Labels
from dynbatch.kernels.runtime.tasks import share_rows

# A state of a frame takes as long as so many elements of a function: logarithms, exponentials.
COST = 4

_library = Library("losses/ctc.c")


def ctc(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    out: Array,
) -> Any:  # fmt: skip
    return _call("ctc", x, labels, offsets, zero_infinity, states, shifts, out)


def ctc_backward(
    x: Array, labels: Labels, offsets: Array, zero_infinity: bool, states: Array, shifts: Array,
    dy: Array, scratch: Array, dx: Array,
) -> Any:  # fmt: skip
    return _call("ctc_backward", x, labels, offsets, zero_infinity, states, shifts, dy, scratch, dx)


def _call(
    name: str, x: Array, labels: Labels, offsets: Array, zero_infinity: bool, *arrays: Array
) -> Any:
    functions = _library.functions(x.dtype) if is_packed(x, *arrays) else None
    if functions is None:
        return NotImplemented
    begins = labels.state_offsets(offsets)
    ids = np.ascontiguousarray(labels.ids, np.int64)
    tables = (offsets, labels.offsets, begins, x, ids, labels.bars(x.dtype))
    count = offsets.size - 1
    share_rows(
        getattr(functions, name), count, COST * int(begins[-1]) // max(1, count), x.shape[1],
        labels.blank, int(zero_infinity), *map(address, (*tables, *arrays)),
    )  # fmt: skip
    return None
