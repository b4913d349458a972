"""Launches of `move.cu`, and the tables that its kernels read.

Tables are NumPy arrays, made while planning and uploaded with all others of the plan. Matrices and
tables are given as device arrays or as addresses; sizes are given, since an address has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.move import Move

Array = np.ndarray[Any, np.dtype[Any]]

THREADS = 256
TILE = 1024  # elements of rectangles to a block, as in move.cu
SEGMENTS = 8  # at most, to a block
# Few segments get a block each, so that all multiprocessors have work.
MANY_BLOCKS = 1024


def segment_blocks(segments: int) -> int:
    """Blocks among which the segments are shared, at most `SEGMENTS` each."""
    return max(-(-segments // SEGMENTS), min(segments, MANY_BLOCKS))


def gather_rows(kernels: Kernels, rows: Any, index: Any, out: Any, count: int, width: int) -> None:
    """out[n] = rows[index[n]]: the twin of `segment.gather_rows`.

    Args:
        rows:  (N, width).
        index: (count,) int32, 0 <= index < N; any order, duplicates allowed.
        out:   (count, width), overwritten.
    """
    across = min(THREADS, 1 << max(0, width - 1).bit_length())
    down = THREADS // across
    grid = (-(-count // down), -(-width // across))
    kernels.launch("gather_rows", grid, (across, down), (rows, index, out, count, width))


class RowTable(NamedTuple):
    """Which source rows are summed into which target row.

    sources: (N,) int32, those of one target next to each other and in order.
    offsets: (K + 1,) int32, where the rows of each target begin in `sources`.
    targets: (K,) int32, increasing.
    """

    sources: Array
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


def add_rows(
    kernels: Kernels,
    rows: Any,
    table: tuple[Any, Any, Any],
    out: Any,
    segments: int,
    width: int,
    accumulate: bool = True,
) -> None:
    """Sum rows into rows, deterministically: the twin of `scatter_rows` and `sum_rows_by_id`.

    Args:
        rows:       (N, width).
        table:      sources (or None for rows in order), offsets and targets of a `RowTable`.
        out:        (M, width). Rows that are no target stay as they are.
        segments:   targets in the table.
        accumulate: add to the target rows rather than overwrite them.
    """
    sources, offsets, targets = table
    grid = (segment_blocks(segments), -(-width // 32))
    args = (rows, sources, offsets, targets, out, segments, width, accumulate)
    kernels.launch("add_rows", grid, (32, SEGMENTS), args)


class RectangleTable(NamedTuple):
    """Rectangles of `total` elements: `entries` is (n, 6) int64, as `move.cu` describes."""

    entries: Array
    total: int


class PieceTable(NamedTuple):
    """Rectangles to add to: (n, 6) int64 `pieces` and their (m, 2) int64 `sources`."""

    pieces: Array
    sources: Array
    total: int


def copy_table(places: Array) -> RectangleTable:
    """The table of `copy_rectangles`.

    Args:
        places: (n, 6) int64: source_start, source_stride, target_start, target_stride, rows, width
            as in `move.Move`. No two targets may overlap.
    """
    places = _occupied(places)
    first, total = _first_elements(places)
    return RectangleTable(np.column_stack((first, places[:, [0, 1, 2, 3, 5]])), total)


def add_tables(places: Array) -> list[PieceTable]:
    """The tables of `add_rectangles`: one launch each, in order, and most often one in all.

    Places with the same target become one piece with several sources. Pieces that overlap without
    being the same go to different tables.

    Args:
        places: (n, 6) int64, as in `copy_table`. Targets may overlap in any way, but the rows of
            one target do not overlap each other.
    """
    places = _occupied(places)
    targets, piece_of = np.unique(places[:, 2:], axis=0, return_inverse=True)
    piece_of = piece_of.reshape(-1)  # its shape differs between NumPy versions
    rounds = _rounds(targets)
    order = np.argsort(piece_of, kind="stable")
    counts = np.bincount(piece_of, minlength=len(targets))
    ends = np.cumsum(counts)
    sources = places[order][:, :2]
    tables = []
    for number in range(int(rounds.max(initial=-1)) + 1):
        chosen = rounds == number
        pieces = np.column_stack((targets[chosen], (ends - counts)[chosen], ends[chosen]))
        first, total = _first_elements(np.column_stack((pieces[:, :2], pieces[:, :4])))
        tables.append(
            PieceTable(np.column_stack((first, pieces[:, [0, 1, 3, 4, 5]])), sources, total)
        )
    return tables


def places(moves: Iterable[Move]) -> Array:
    """The (n, 6) int64 numbers of moves that have one source and one target array."""
    numbers = [(m[1], m[2], m[4], m[5], m[6], m[7]) for m in moves]
    return np.array(numbers, np.int64).reshape(-1, 6)


def reverse(places: Array) -> Array:
    """The same places with source and target exchanged: the gradient of a copy."""
    return places[:, [2, 3, 0, 1, 4, 5]]


def copy_rectangles(
    kernels: Kernels, source: Any, target: Any, entries: Any, count: int, total: int
) -> None:
    """Copy every rectangle of a `RectangleTable`, in one launch: the twin of `move.run`.

    Places count from `source` and `target`, which may be one arena.
    """
    args = (source, target, entries, count, total)
    kernels.launch("copy_rectangles", (-(-total // TILE),), (THREADS,), args)


def add_rectangles(
    kernels: Kernels, source: Any, target: Any, table: tuple[Any, Any], count: int, total: int
) -> None:
    """Add to every piece of a `PieceTable`, in one launch: the twin of `move.run(add=True)`.

    The sum of a piece's sources is added in the order of the places.
    """
    args = (source, target, *table, count, total)
    kernels.launch("add_rectangles", (-(-total // TILE),), (THREADS,), args)


def _occupied(places: Array) -> Array:
    occupied: Array = places[(places[:, 4] > 0) & (places[:, 5] > 0)]
    return occupied


def _first_elements(places: Array) -> tuple[Array, int]:
    """How many elements lie in the rectangles before each, and in all."""
    sizes = places[:, 4] * places[:, 5]
    if sizes.size and int(sizes.max()) >= 1 << 32:
        raise ShapeError(f"a rectangle of {int(sizes.max())} elements; the most is {(1 << 32) - 1}")
    ends = np.cumsum(sizes)
    return ends - sizes, int(sizes.sum())


def _rounds(targets: Array) -> Array:
    """The number of the table that each target goes to, so that none of a table overlap.

    Args:
        targets: (n, 4) int64 start, stride, rows, width, all different.
    """
    start, stride, rows, width = targets.T
    reach = (rows - 1) * stride
    low, high = start + np.minimum(reach, 0), start + np.maximum(reach, 0) + width
    order = np.argsort(low, kind="stable")
    rounds = np.zeros(len(targets), np.int64)
    if (low[order][1:] >= np.maximum.accumulate(high[order])[:-1]).all():
        return rounds
    for i in range(len(targets)):
        near = np.flatnonzero((low[:i] < high[i]) & (low[i] < high[:i]))
        taken = {int(rounds[j]) for j in near if not _apart(targets[i], targets[j])}
        rounds[i] = next(number for number in range(len(taken) + 1) if number not in taken)
    return rounds


def _apart(a: Array, b: Array) -> bool:
    """Whether two targets whose extents overlap are side by side in columns of one matrix."""
    (start, stride, _, width), (other, other_stride, _, other_width) = a.tolist(), b.tolist()
    period = abs(stride)
    if period != abs(other_stride) or not period:
        return False
    ahead: int = (other - start) % period
    return bool(ahead >= width and ahead + other_width <= period)
