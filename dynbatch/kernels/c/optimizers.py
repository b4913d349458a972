"""`kernels.optimizers` in C: a part of a parameter in one pass, without scratch."""

from __future__ import annotations

from ctypes import byref, c_int64
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import optimizers
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.optimizers import ParameterSlice, Rule

STEPS = (optimizers.sgd, optimizers.adagrad, optimizers.rmsprop, optimizers.adam)
"""The kernels in the order of `optimizers.c`."""

_library = Library("optimizers.c")


def update(part: ParameterSlice, start: int, stop: int, scratch: Array) -> Any:
    rule, value, slots, rows = part.rule, part.value, part.slots, part.rows
    functions = _library.functions(value.dtype)
    if functions is None or not isinstance(rule, Rule) or rule.kernel not in STEPS:
        return NotImplemented
    if not is_packed(value, part.gradient, *slots):
        return NotImplemented
    numbers, taken = np.array(rule.numbers, np.float64), c_int64(1)
    of_rows: tuple[int | None, int, int] = (None, 0, 0)
    if rows is not None:
        rows = np.ascontiguousarray(rows, np.int64)
        of_rows = (address(rows), rows.size, value.shape[1])
    places = [address(array) for array in (value, *slots)]
    functions.update(
        STEPS.index(rule.kernel), address(numbers), start, stop, address(part.gradient), *of_rows,
        len(value), part.every_row, byref(taken), *places, *[None] * (4 - len(places)),
    )  # fmt: skip
    return None if taken.value else NotImplemented
