"""`kernels.optimizers` in C: parameters in one pass, without scratch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import NativeTask, Tasks, task
from dynbatch.kernels.optimizers import ParameterSlice, Share
from dynbatch.kernels.scalar.c_printer import CPrinter, fused
from dynbatch.kernels.scalar.expressions import rebuild
from dynbatch.kernels.scalar.update import UpdateRule

TEXT = """\
#include "elementwise.h"
#include "updates.h"

static void step_of_{name}(ptrdiff_t start, ptrdiff_t n,
    const REAL* gradients, REAL* const* arrays, const double* numbers) {{
    {heads}
    EACH_VECTOR(i, part, n) {{
        vector gradient_ = get(gradients + i, part);
        {body}
    }}
}}

EXPORT void update(ptrdiff_t first, ptrdiff_t last, const double* numbers, const REAL* gradient,
    const int64_t* rows, ptrdiff_t num_rows, ptrdiff_t width, int every_row, {pointers}) {{
    REAL* const arrays[] = {{{arrays}}};
    over_units(step_of_{name}, numbers, first, last, gradient, rows, num_rows, width, every_row,
        arrays);
}}
"""


@cache
def library_of(update: UpdateRule) -> Library:
    """The update's function, compiled when it is first run."""
    return Library(f"{update.name}.c", text(update))


def text(update: UpdateRule) -> str:
    """The C source of an update."""
    outputs = update.outputs("c")
    heads = [f"const REAL {x}_ = (REAL)numbers[{k}];" for k, x in enumerate(update.numbers)]
    reads, writes = [], []
    lines, results = CPrinter().statements(*rebuild(tuple(outputs.values()), fused))
    for k, (name, result) in enumerate(zip(outputs, results, strict=True)):
        pointer, read, write = f"arrays[{k}] + start", f"get(p{k} + i, part)", ""
        if name in update.optional:
            pointer, read = f"arrays[{k}] ? {pointer} : NULL", f"p{k} ? {read} : splat(0)"
            write = f"if (p{k}) "
        heads.append(f"REAL* const p{k} = {pointer};")
        reads.append(f"vector {name}_ = {read};")
        lines.append(f"vector new{k} = {result};")
        writes.append(f"{write}put(p{k} + i, new{k}, part);")
    arrays = [f"a{k}" for k in range(len(outputs))]
    return TEXT.format(
        name=update.name,
        heads="\n    ".join(heads),
        body="\n        ".join([*reads, *lines, *writes[1:], writes[0]]),
        pointers=", ".join([f"REAL* {array}" for array in arrays]),
        arrays=", ".join(arrays),
    )


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
    if library_of(rule.update).functions(value.dtype) is None:
        return False
    if rows is None or not rows.size:
        return True
    return bool(rows[0] >= 0 and rows[-1] < len(value) and (rows[1:] > rows[:-1]).all())


def _task(part: ParameterSlice, start: int, stop: int) -> NativeTask:
    value, rule, rows = part.value, part.rule, part.rows
    functions = library_of(rule.update).functions(value.dtype)
    assert functions is not None
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
    return task(functions.update, arguments, part, numbers, rows)
