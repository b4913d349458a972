"""Steps of the optimizers on a GPU: tables for `updates.cuh`, and one launch per dtype."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime.addresses import element_offsets
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.optimizers import ParameterSlice
from dynbatch.kernels.scalar.c_printer import CudaPrinter
from dynbatch.kernels.scalar.update import UpdateRule

THREADS = 256
TILE = 1024  # elements of parameters to a block, as in updates.cuh

TEXT = """\
#include "updates.cuh"

extern "C" __global__ void {name}(REAL* base, const long long* entries, const int* rows,
    const REAL* all_numbers, const double* norm, int count, long long total) {{
    over_parameters<{arrays}>(base, entries, rows, all_numbers, {numbers}, norm, count, total,
                              [](REAL gradient_, REAL* const* arrays, const REAL* numbers) {{
        {body}
    }});
}}
"""


@cache
def source_of(update: UpdateRule) -> CudaSource:
    """The source of an update's kernel, whose name tells it from other updates of one name."""
    outputs = update.outputs("cuda")
    reads = [f"const REAL {x}_ = numbers[{k}];" for k, x in enumerate(update.numbers)]
    writes = []
    lines, results = CudaPrinter().statements(*outputs.values())
    for k, (name, result) in enumerate(zip(outputs, results, strict=True)):
        read, write = f"*arrays[{k}]", ""
        if name in update.optional:
            read, write = f"arrays[{k}] ? {read} : (REAL)0", f"if (arrays[{k}]) "
        reads.append(f"const REAL {name}_ = {read};")
        writes.append(f"{write}*arrays[{k}] = {result};")
    body = "\n        ".join([*reads, *lines, *writes])
    name = f"{update.name}_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    text = TEXT.format(name=name, arrays=len(outputs), numbers=len(update.numbers), body=body)
    return join(f"{update.name}.cu", text)


def update_together(array: Array, parts: Sequence[ParameterSlice], scratch: object) -> None:
    update(parts, parts[0].norm)


def update(parts: Sequence[ParameterSlice], norm: Array | None = None) -> None:
    """Update all parameters, which have one dtype and one rule's update, in one launch.

    Args:
        norm: a device array of one float64 that must be finite, or nothing is done.

    Raises:
        ShapeError: a parameter has 2^32 elements or more.
    """
    parts = [part for part in parts if part.num_elements]
    if not parts:
        return
    entries, rows, total = table(parts)
    rule = parts[0].rule
    numbers = np.array([part.rule.numbers for part in parts], np.float64)
    like = parts[0].value
    source = source_of(rule.update)
    (kernel,) = source.kernels
    queue().kernels(like.dtype).add(source)
    args = (like, entries, rows, numbers, norm, len(parts), total)
    launch(like, kernel, (-(-total // TILE),), (THREADS,), args)


def table(parts: Sequence[ParameterSlice]) -> tuple[Array, Array | None, int]:
    """The rows of the table, as `updates.cuh` describes them, `rows`, and all elements."""
    largest = max([part.num_elements for part in parts])
    if largest >= 1 << 32:
        raise ShapeError(f"a parameter of {largest} elements; the most is 2^32 - 1")
    arrays = [(part.value, part.gradient, *part.slots) for part in parts]
    offsets = iter(
        element_offsets(parts[0].value, [array for of_part in arrays for array in of_part])
    )
    entries: list[tuple[int, ...]] = []
    rows_given: list[Array] = []
    total = num_rows = 0
    for part in parts:
        value, gradient, *slots = [next(offsets) for _ in range(2 + len(part.slots))]
        of_rows = 0, 0, 0, 0
        if part.rows is not None:
            of_rows = part.value.shape[1], num_rows, len(part.rows), int(part.every_row)
            rows_given.append(part.rows)
            num_rows += len(part.rows)
        places = [slot or 0 for slot in part.rule.every_slot(slots)]
        entries.append((total, gradient, *of_rows, value, *places))
        total += part.num_elements
    return np.array(entries, np.int64), np.concatenate(rows_given) if rows_given else None, total
