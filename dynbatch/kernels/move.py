"""Copies between places of an arena: the packing of inputs, and every purely structural operation.

One table describes all copies of a mini-batch, whatever their widths and lengths, so that a concat,
a split or a gather of all sentences is one launch on a GPU, and one call in C. The NumPy version
merges neighbouring entries first and then copies entry by entry.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import HOST, kernel

# Bytes below which sharing copies between threads costs more than it saves.
WORTH_THREADS = 1 << 20

SOURCE, SOURCE_STRIDE, TARGET, TARGET_STRIDE, ROWS, WIDTH = range(6)
"""Columns of a table of moves. Starts and strides count elements of one-dimensional arrays.

Row i of a move goes from source[SOURCE + i * SOURCE_STRIDE] to target[TARGET + i * TARGET_STRIDE],
WIDTH elements; a negative stride reverses the rows. A stride of 0 stands for one row.
"""

Column = Array | list[int] | int
"""One number for each move, or one for all."""


def table(
    source: Column, source_stride: Column, target: Column, target_stride: Column,
    rows: Column, width: Column, count: int,
) -> Array:  # fmt: skip
    """The table (count, 6) int64 of so many moves."""
    moves = np.empty((count, 6), np.int64)
    columns = (source, source_stride, target, target_stride, rows, width)
    for number, column in enumerate(columns):
        moves[:, number] = column
    return moves


def reverse(moves: Array) -> Array:
    """The moves from target to source."""
    return moves[:, [TARGET, TARGET_STRIDE, SOURCE, SOURCE_STRIDE, ROWS, WIDTH]]


@kernel(1, c=HOST, cuda=HOST)
def run(source: Array, target: Array, moves: Array, add: bool = False) -> int:
    """Carry out the moves, adding to the target if `add`; return the bytes copied.

    Args:
        moves: (K, 6) int64, see `SOURCE`. No two write to one place, unless `add`: then they do so
            in their order.
    """
    for move in merge(moves).tolist():
        views = _views(source, target, *move)
        pieces = _pieces(*views) if views[1].nbytes >= WORTH_THREADS else [views]
        if add:
            parallel.run([partial(np.add, there, here, out=there) for here, there in pieces])
        else:
            parallel.run([partial(np.copyto, there, here) for here, there in pieces])
    return num_elements(moves) * target.itemsize


def num_elements(moves: Array) -> int:
    return int(moves[:, ROWS] @ moves[:, WIDTH])


def merge(moves: Array) -> Array:
    """Join each move with the ones before it if they form one larger rectangle."""
    moves = moves[(moves[:, ROWS] > 0) & (moves[:, WIDTH] > 0)]
    if len(moves) < 2:
        return moves
    rows, width, strides = moves[:, ROWS], moves[:, WIDTH], moves[:, [SOURCE_STRIDE, TARGET_STRIDE]]
    # A stride of 0 says that there is one row, and how it lies does not matter.
    packed = (strides == width[:, None]).all(1) | ~strides.all(1)
    moves[packed, WIDTH] = (rows * width)[packed]
    moves[packed, ROWS] = 1
    strides[packed] = moves[packed][:, [WIDTH]]
    moves[:, [SOURCE_STRIDE, TARGET_STRIDE]] = strides
    ends = moves[:, [SOURCE, TARGET]] + moves[:, [ROWS]] * strides
    follows = (moves[1:, [SOURCE, TARGET]] == ends[:-1]).all(1) & (packed[1:] == packed[:-1])
    alike = (strides[1:] == strides[:-1]).all(1) & (moves[1:, WIDTH] == moves[:-1, WIDTH])
    first = np.flatnonzero(np.append(True, ~(follows & (packed[1:] | alike))))
    merged = moves[first]
    grown = np.add.reduceat(moves[:, [ROWS, WIDTH]], first)
    is_packed = packed[first]
    merged[~is_packed, ROWS] = grown[~is_packed, 0]
    merged[is_packed, WIDTH] = grown[is_packed, 1]
    return merged


def _pieces(source: Array, target: Array) -> list[tuple[Array, Array]]:
    """Source and target of a copy, cut for the threads that are worth it."""
    if target.shape[0] == 1:
        source, target = source[0], target[0]
    spans = parallel.shards(target.shape[0], least=64)
    return [(source[first:last], target[first:last]) for first, last in spans]


def _views(
    source: Array, target: Array, source_start: int, source_stride: int, target_start: int,
    target_stride: int, rows: int, width: int,
) -> tuple[Array, Array]:  # fmt: skip
    size, shape = source.itemsize, (rows, width)
    return (
        np.ndarray(shape, source.dtype, source, source_start * size, (source_stride * size, size)),
        np.ndarray(shape, target.dtype, target, target_start * size, (target_stride * size, size)),
    )


def row_index(starts: Array, lengths: Array, steps: int = 1) -> Array:
    """Row numbers start, start + step, … of every segment, one segment after the other.

    Args:
        starts:  (K,) first row of each segment.
        lengths: (K,) rows of each segment.
    Returns:
        (sum(lengths),) int64.
    """
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    within = np.arange(total) - repeat(ends - lengths, lengths)
    index: Array = repeat(starts, lengths) + steps * within
    return index
