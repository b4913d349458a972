"""Segments and rows by index: the twins of `kernels/segment.py`.

Segments launch `segment.cu`, rows by index `move.cu`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import Queue, launch, queue
from dynbatch.kernels.cuda.segments import (
    ROWS_OF_BLOCK,
    over_elements,
    over_segments,
    reduce_parts,
    row_grid,
    segment_blocks,
)
from dynbatch.kernels.matrices import Segments

OPERATIONS = {np.add: 0, np.maximum: 1, np.minimum: 2}  # as in segment.cu


def reduce_segments(ufunc: Any, rows: Any, offsets: Segments, out: Any, empty: float) -> None:
    """out[k] = the sum, maximum or minimum of the rows of segment k; `empty` of none."""
    reduce = partial(_reduce, OPERATIONS[ufunc], empty)
    reduce(*reduce_parts(rows, offsets, reduce), out)


def _reduce(operation: int, empty: float, rows: Any, offsets: Segments, out: Any) -> None:
    over_segments("reduce_segments", (rows, out), offsets, out.shape[1], operation, empty)


def spread_segments(values: Any, offsets: Segments, out: Any) -> None:
    """out[n] = values[k] for every row n of segment k."""
    over_elements("spread_segments", (values,), offsets, out)


def gather_rows(rows: Any, index: Array, out: Any) -> None:
    """out[n] = rows[index[n]]."""
    width = out.shape[1]
    pick_rows(queue(), out.dtype, (rows, rows.shape[1]), None, index, (out, width), width)


def pick_rows(
    queue: Queue,
    dtype: Any,
    source: tuple[Any, int],
    other: tuple[Any, int] | None,
    index: Array,
    target: tuple[Any, int],
    width: int,
) -> None:
    """target[i] = source[index[i]], or other[-1 - index[i]] where the index is negative.

    Args:
        source, target: (array or address, elements from a row to the next).
        other:          the same, or None for zeros.
        index:          (rows,) integers of the host.
    """
    grid, block = row_grid(len(index), width)
    args = (*source, *(other or (None, 0)), index, *target, len(index), width)
    queue.launch(dtype, "gather_rows", grid, block, args)


class RowTable(NamedTuple):
    """Which source rows are summed into which target row.

    sources: (N,) integers, those of one target next to each other and in order; None for rows as
             they come.
    offsets: (K + 1,) integers, where the rows of each target begin in `sources`.
    targets: (K,) integers, increasing.
    """

    sources: Array | None
    offsets: Array
    targets: Array


def row_table(ids: Array) -> RowTable:
    """The table that sums row n into row ids[n]: the gradient of a gather by `ids`.

    Args:
        ids: (N,) integers, any order, duplicates allowed.
    """
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    first = np.ones(ids.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    offsets = np.append(starts, ids.size)
    return RowTable(
        order.astype(np.int32), offsets.astype(np.int32), ordered[starts].astype(np.int32)
    )


def scatter_rows(rows: Any, index: Array, out: Any) -> None:
    """out[i] = sum of the rows[n] with index[n] == i; zero where there is none."""
    count = out.shape[0]
    order = np.argsort(index, kind="stable")
    offsets = np.searchsorted(index[order], np.arange(count + 1))
    _add_rows(rows, RowTable(order, offsets, np.arange(count)), out, accumulate=False)


def add_rows(rows: Any, index: Array, out: Any) -> None:
    """out[index[n]] += rows[n], for increasing indices."""
    count = len(index)
    _add_rows(rows, RowTable(None, np.arange(count + 1), index), out, accumulate=True)


def sum_rows_by_id(ids: Array, rows: Any) -> tuple[Array, Any]:
    """The distinct ids, on the host, and the sums of their rows, on the device."""
    table = row_table(ids)
    sums = queue().cupy.empty((len(table.targets), rows.shape[1]), rows.dtype)
    places = np.arange(len(table.targets))
    _add_rows(rows, table._replace(targets=places), sums, accumulate=False)
    return table.targets.astype(np.int64), sums


def _add_rows(rows: Any, table: RowTable, out: Any, accumulate: bool) -> None:
    segments, width = len(table.targets), out.shape[1]
    grid = (segment_blocks(segments), -(-width // 32))
    args = (rows, *table, out, segments, width, accumulate)
    launch(out, "add_rows", grid, (32, ROWS_OF_BLOCK), args)
