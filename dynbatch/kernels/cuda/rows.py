"""Launches of `move.cu` for rows by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.move import THREADS, TILE
from dynbatch.kernels.cuda.runtime.queue import Queue, launch, queue
from dynbatch.kernels.cuda.walks import ROWS_OF_BLOCK, segment_blocks
from dynbatch.kernels.rows import by_id


class RowGather(NamedTuple):
    """target[i] = source[places[i]], or other[-1 - places[i]] where the place is negative.

    source, target: address and stride, in elements from a row to the next.
    places: (rows,) integers of the host; the number of rows where they are 0, 1, 2 …
    other:  None for zeros.
    puts:   target[places[i]] = source[i] instead; no place twice, none negative.
    """

    source: tuple[int, int]
    places: Array | int
    target: tuple[int, int]
    width: int
    other: tuple[int, int] | None = None
    puts: bool = False


def gather_many(queue: Queue, dtype: DTypeLike, gathers: Sequence[RowGather]) -> None:
    """Carry out gathers in one launch; no target is read or written by another gather.

    Raises:
        ShapeError: a gather has 2^32 elements or more.
    """
    itemsize, base, total, used = np.dtype(dtype).itemsize, 0, 0, 0
    entries: list[tuple[int, ...]] = []
    indices: list[Array] = []
    starts: dict[int, int] = {}  # of each array of places
    for source, places, target, width, other, puts in gathers:
        rows = places if isinstance(places, int) else len(places)
        if rows * width >= 1 << 32:
            raise ShapeError(f"a gather of {rows * width} elements; the most is {(1 << 32) - 1}")
        if not rows * width:
            continue
        first = -1
        if not isinstance(places, int):
            first = starts.setdefault(id(places), used)
            if first == used:
                indices.append(places)
                used += rows
            first = -2 - first if puts else first
        base = base or target[0]
        begin, aside, end = [(x - base) // itemsize for x, _ in (source, other or source, target)]
        step = other[1] if other else -1
        entries.append((total, begin, source[1], aside, step, first, end, target[1], width))
        total += rows * width
    if not total:
        return
    table = np.array(entries, np.int64)
    args = (base, table, np.concatenate(indices) if indices else None, len(entries), total)
    queue.launch(dtype, "gather_many", (-(-total // TILE),), (THREADS,), args)


class RowTable(NamedTuple):
    """The source rows that are summed into each target row.

    sources: (N,) integers, grouped by target, in order; None for all rows in order.
    offsets: (K + 1,) integers, the offsets of each target's rows in `sources`.
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
    targets, sources, offsets = [table.astype(np.int32) for table in by_id(ids)]
    return RowTable(sources, offsets, targets)


def scatter_rows(rows: Array, index: Array, out: Array) -> None:
    count = out.shape[0]
    order = np.argsort(index, kind="stable")
    offsets = np.searchsorted(index[order], np.arange(count + 1))
    _add_rows(rows, RowTable(order, offsets, np.arange(count)), out, accumulate=False)


def add_rows(rows: Array, index: Array, out: Array) -> None:
    """out[index[n]] += rows[n], for increasing indices."""
    count = len(index)
    _add_rows(rows, RowTable(None, np.arange(count + 1), index), out, accumulate=True)


def add_rows_at(rows: Array, positions: Array, out: Array, unique: bool = False) -> None:
    _add_rows(rows, row_table(positions), out, accumulate=True)


def sum_rows_by_id(ids: Array, rows: Array) -> tuple[Array, Array]:
    """The distinct ids, on the host, and the sums of their rows, on the device."""
    table = row_table(ids)
    sums = queue().cupy.empty((len(table.targets), rows.shape[1]), rows.dtype)
    each = np.arange(len(table.targets))
    _add_rows(rows, table._replace(targets=each), sums, accumulate=False)
    return table.targets.astype(np.int64), sums


def _add_rows(rows: Array, table: RowTable, out: Array, accumulate: bool) -> None:
    segments, width = len(table.targets), out.shape[1]
    grid = (segment_blocks(segments), -(-width // 32))
    args = (rows, *table, out, segments, width, accumulate)
    launch(out, "add_rows", grid, (32, ROWS_OF_BLOCK), args)
