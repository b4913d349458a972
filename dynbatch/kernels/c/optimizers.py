"""`kernels.optimizers` in C: parameters in one pass, without scratch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.kernels.c.printed import updates
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.optimizers import ParameterSlice, Share
from dynbatch.kernels.runtime.tasks import NativeTask, Tasks, task
from dynbatch.kernels.scalar.update import UPDATES, UpdateRule

_library = Library("updates.c")


@cache
def library_of(update: UpdateRule) -> Library:
    """The library of an update's function: dynbatch's own share one, each other has its own."""
    if UPDATES.get(update.name) is update:
        return _library
    return Library(f"{update.name}.c", updates([update]))


def _function_of(update: UpdateRule, dtype: DType) -> Any:
    """The function that steps by an update, compiled when it is first run; None where C is not."""
    functions = library_of(update).functions(dtype)
    return None if functions is None else getattr(functions, f"update_{update.name}")


def update(shares: Sequence[Share], scratch: Sequence[Array]) -> Any:
    if not all([_is_known(part) for share in shares for part, _, _ in share]):
        return NotImplemented
    tasks = Tasks()
    tasks.then(*[[_task(*each) for each in share] for share in shares])
    tasks.run()
    return None


def _is_known(part: ParameterSlice) -> bool:
    """Whether C is used, for such arrays, and the rows are those of the parameter."""
    rule, value, rows = part.rule, part.value, part.rows
    if not is_packed(value, part.gradient, *part.slots):
        return False
    if _function_of(rule.update, value.dtype) is None:
        return False
    if rows is None or not rows.size:
        return True
    return bool(rows[0] >= 0 and rows[-1] < len(value) and (rows[1:] > rows[:-1]).all())


def _task(part: ParameterSlice, start: int, stop: int) -> NativeTask:
    value, rule, rows = part.value, part.rule, part.rows
    numbers = np.array(rule.numbers, np.float64)
    of_rows: tuple[int | None, int, int] = (None, 0, 0)
    if rows is not None:
        rows = np.ascontiguousarray(rows, np.int64)
        of_rows = (address(rows), rows.size, value.shape[1])
    slots = rule.every_slot([address(array) for array in part.slots])
    arguments = (
        start, stop, address(numbers), address(part.gradient), *of_rows, part.every_row,
        address(value), *slots,
    )  # fmt: skip
    return task(_function_of(rule.update, value.dtype), arguments, part, numbers, rows)
