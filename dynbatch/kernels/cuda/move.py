"""Launches of the rectangles of `move.cu`, and the tables that its kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.move import num_elements

THREADS = 256
TILE = 1024  # elements of rectangles to a block, as in move.cu


class RectangleTable(NamedTuple):
    """Rectangles of `total` elements: `entries` is (n, 6) int64, as `move.cu` describes."""

    entries: Array
    total: int


class PieceTable(NamedTuple):
    """Targets to add to: (n, 6) int64 `pieces` and their (m, 2) int64 `sources`."""

    pieces: Array
    sources: Array
    total: int


def copy_table(rectangles: Array) -> RectangleTable:
    """The table of `copy_rectangles`.

    Args:
        rectangles: (n, 6) int64, as in `kernels.move`. No two targets may overlap.
    """
    rectangles = _occupied(rectangles)
    first, total = _first_elements(rectangles)
    return RectangleTable(np.column_stack((first, rectangles[:, [0, 1, 2, 3, 5]])), total)


def add_tables(rectangles: Array) -> list[PieceTable]:
    """The tables of `add_rectangles`, one launch each, in order; usually there is one.

    Rectangles with the same target become one piece with several sources. Pieces that overlap
    without being the same go to different tables.

    Args:
        rectangles: (n, 6) int64, as in `copy_table`. Targets may overlap in any way, but the rows
            of one target do not overlap each other.
    """
    rectangles = _occupied(rectangles)
    targets, piece_of = np.unique(rectangles[:, 2:], axis=0, return_inverse=True)
    piece_of = piece_of.reshape(-1)  # its shape differs between NumPy versions
    rounds = _rounds(targets)
    order = np.argsort(piece_of, kind="stable")
    counts = np.bincount(piece_of, minlength=len(targets))
    ends = np.cumsum(counts)
    sources = rectangles[order][:, :2]
    tables = []
    for number in range(int(rounds.max(initial=-1)) + 1):
        chosen = rounds == number
        pieces = np.column_stack((targets[chosen], (ends - counts)[chosen], ends[chosen]))
        first, total = _first_elements(np.column_stack((pieces[:, :2], pieces[:, :4])))
        tables.append(
            PieceTable(np.column_stack((first, pieces[:, [0, 1, 3, 4, 5]])), sources, total)
        )
    return tables


def run(source: Array, target: Array, moves: Array, add: bool = False) -> int:
    """Carry out the moves of a table as `move.run` has it, usually in one launch."""
    if add:
        add_rectangles(source, target, moves)
    else:
        copy_rectangles(source, target, moves)
    return num_elements(moves) * int(target.itemsize)


def copy_rectangles(source: Array, target: Array, rectangles: Array) -> None:
    """Copy every rectangle, in one launch.

    Args:
        rectangles: (n, 6) int64, as in `copy_table`; counted from `source` and `target`, which may
            be one arena.
    """
    entries, total = copy_table(rectangles)
    args = (source, target, entries, len(entries), total)
    launch(target, "copy_rectangles", (-(-total // TILE),), (THREADS,), args)


def add_rectangles(source: Array, target: Array, rectangles: Array) -> None:
    """Add every source to its target, in the order of the rectangles, usually in one launch.

    Args:
        rectangles: (n, 6) int64, as in `add_tables`.
    """
    for pieces, sources, total in add_tables(rectangles):
        args = (source, target, pieces, sources, len(pieces), total)
        launch(target, "add_rectangles", (-(-total // TILE),), (THREADS,), args)


def _occupied(rectangles: Array) -> Array:
    occupied: Array = rectangles[(rectangles[:, 4] > 0) & (rectangles[:, 5] > 0)]
    return occupied


def _first_elements(rectangles: Array) -> tuple[Array, int]:
    sizes = rectangles[:, 4] * rectangles[:, 5]
    if sizes.size and int(sizes.max()) >= 1 << 32:
        raise ShapeError(f"a rectangle of {int(sizes.max())} elements; the most is {(1 << 32) - 1}")
    ends = np.cumsum(sizes)
    return ends - sizes, int(sizes.sum())


def _rounds(targets: Array) -> Array:
    """The table number of each target, such that targets in one table do not overlap.

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
    """Whether two targets with overlapping extents are different columns of one matrix."""
    (start, stride, _, width), (other, other_stride, _, other_width) = a.tolist(), b.tolist()
    period = abs(stride)
    if period != abs(other_stride) or not period:
        return False
    ahead: int = (other - start) % period
    return bool(ahead >= width and ahead + other_width <= period)
