"""Steps of the optimizers on a GPU: tables for `optimizers.cu`, and one launch per dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime.addresses import element_offsets
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.optimizers import ParameterSlice, Rule

THREADS = 256
TILE = 1024  # elements of parameters to a block, and the slots of a table row, as in optimizers.cu
SLOTS = 3


def update(kernel: str, parts: Sequence[ParameterSlice], norm: Array | None = None) -> None:
    """Update all parameters, which have one dtype and one rule's kernel, in one launch.

    Args:
        kernel: the name of one in `kernels.optimizers`.
        norm:   a device array of one float64 that must be finite, or nothing is done.

    Raises:
        ShapeError: a parameter has 2^32 elements or more.
    """
    parts = [part for part in parts if part.num_elements]
    if not parts:
        return
    entries, rows, total = table(parts)
    numbers = np.array([cast(Rule, part.rule).numbers for part in parts], np.float64)
    like = parts[0].value
    args = (like, entries, rows, numbers, norm, len(parts), total)
    launch(like, kernel, (-(-total // TILE),), (THREADS,), args)


def table(parts: Sequence[ParameterSlice]) -> tuple[Array, Array | None, int]:
    """The rows of the table, as `optimizers.cu` describes them, `rows`, and all elements."""
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
        starts = [next(offsets) for _ in range(2 + len(part.slots))]
        starts += [0] * (SLOTS - len(part.slots))
        if part.rows is None:
            entries.append((total, *starts, 0, 0, 0, 0))
        else:
            width, count = part.value.shape[1], len(part.rows)
            entries.append((total, *starts, width, num_rows, count, part.every_row))
            rows_given.append(part.rows)
            num_rows += count
        total += part.num_elements
    return np.array(entries, np.int64), np.concatenate(rows_given) if rows_given else None, total
