"""`kernels.optimizers` in C: parameters in one pass, without scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import optimizers
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import NativeTask, Tasks, task
from dynbatch.kernels.optimizers import ParameterSlice, Rule, Share

STEPS = (
    optimizers.sgd, optimizers.adagrad, optimizers.rmsprop, optimizers.adam, optimizers.adadelta,
    optimizers.exponentiated,
)  # fmt: skip
"""The kernels in the order of `optimizers.c`."""

_library = Library("optimizers.c")


def update(shares: Sequence[Share], scratch: Sequence[Array]) -> Any:
    if not all([_is_known(part) for share in shares for part, _, _ in share]):
        return NotImplemented
    tasks = Tasks()
    tasks.then(*[[_task(*each) for each in share] for share in shares])
    tasks.run()
    return None


def _is_known(part: ParameterSlice) -> bool:
    """Whether C has the rule, for such arrays, and the rows are those of the parameter."""
    rule, value, rows = part.rule, part.value, part.rows
    if _library.functions(value.dtype) is None or not isinstance(rule, Rule):
        return False
    if rule.kernel not in STEPS or not is_packed(value, part.gradient, *part.slots):
        return False
    if rows is None or not rows.size:
        return True
    return bool(rows[0] >= 0 and rows[-1] < len(value) and (rows[1:] > rows[:-1]).all())


def _task(part: ParameterSlice, start: int, stop: int) -> NativeTask:
    functions = _library.functions(part.value.dtype)
    assert functions is not None and isinstance(part.rule, Rule)
    value, rows, numbers = part.value, part.rows, np.array(part.rule.numbers, np.float64)
    of_rows: tuple[int | None, int, int] = (None, 0, 0)
    if rows is not None:
        rows = np.ascontiguousarray(rows, np.int64)
        of_rows = (address(rows), rows.size, value.shape[1])
    places = [address(array) for array in (value, *part.slots)]
    arguments = (
        STEPS.index(part.rule.kernel), address(numbers), start, stop, address(part.gradient),
        *of_rows, part.every_row, *places, *[None] * (4 - len(places)),
    )  # fmt: skip
    return task(functions.update, arguments, part, numbers, rows)
