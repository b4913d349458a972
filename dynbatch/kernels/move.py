"""Copies between places of an arena: the packing of inputs, and every purely structural operation.

One table describes all copies of a mini-batch, whatever their widths and lengths, so that on a GPU
a concat, a split or a gather of all sentences is one launch. The NumPy version merges neighbouring
entries first and then copies entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import cuda_version

# Bytes below which sharing copies between threads costs more than it saves.
WORTH_THREADS = 1 << 20


class Move(NamedTuple):
    """Copy `rows` x `width` elements. Starts and strides count elements of one-dimensional arrays.

    Row i goes from source[source_start + i * source_stride] to target[target_start + i *
    target_stride]; a negative stride reverses the rows.
    """

    source: Array
    source_start: int
    source_stride: int
    target: Array
    target_start: int
    target_stride: int
    rows: int
    width: int


def merge(moves: Iterable[Move]) -> list[Move]:
    """Join each move with the one before it if both form one larger rectangle."""
    merged: list[Move] = []
    for move in moves:
        if move.rows == 0 or move.width == 0:
            continue
        if move.source_stride == move.width == move.target_stride:
            move = move._replace(
                rows=1, width=move.rows * move.width, source_stride=0, target_stride=0
            )
        if merged:
            joined = _join(merged[-1], move)
            if joined is not None:
                merged[-1] = joined
                continue
        merged.append(move)
    return merged


def _join(a: Move, b: Move) -> Move | None:
    if a.source is not b.source or a.target is not b.target:
        return None
    if a.rows == 1 and b.rows == 1 and a.source_stride == b.source_stride == 0:
        if (
            b.source_start == a.source_start + a.width
            and b.target_start == a.target_start + a.width
        ):
            return a._replace(width=a.width + b.width)
        return None
    if (
        a.width == b.width
        and a.source_stride == b.source_stride
        and a.target_stride == b.target_stride
        and b.source_start == a.source_start + a.rows * a.source_stride
        and b.target_start == a.target_start + a.rows * a.target_stride
    ):
        return a._replace(rows=a.rows + b.rows)
    return None


def run(moves: Iterable[Move], add: bool = False) -> int:
    """Carry out the moves, adding to the targets if `add`; return the bytes copied."""
    moves = list(moves)
    if moves and not isinstance(moves[0].target, np.ndarray):
        return cast(int, cuda_version("move", "run")(moves, add))
    views = [_views(move) for move in merge(moves)]
    copied = sum([target.nbytes for _, target in views])
    if add:  # one after the other: the same target may come again
        for source, target in views:
            parallel.run([partial(np.add, t, s, out=t) for s, t in _pieces(source, target)])
    elif copied < WORTH_THREADS or parallel.available() == 1:
        for source, target in views:
            np.copyto(target, source)
    else:
        pieces = [piece for view in views for piece in _pieces(*view)]
        parallel.run([partial(np.copyto, target, source) for source, target in pieces])
    return copied


def _pieces(source: Array, target: Array) -> list[tuple[Array, Array]]:
    """Source and target of a copy, cut for the threads that are worth it."""
    if target.nbytes < WORTH_THREADS:
        return [(source, target)]
    if target.shape[0] == 1:
        source, target = source[0], target[0]
    spans = parallel.shards(target.shape[0], least=64)
    return [(source[first:last], target[first:last]) for first, last in spans]


def run_backward(moves: Iterable[Move], add: bool) -> int:
    """Carry out the moves from target to source: the gradient of `run`."""
    return run((_reverse(move) for move in moves), add)


def _reverse(move: Move) -> Move:
    return Move(
        move.target, move.target_start, move.target_stride,
        move.source, move.source_start, move.source_stride,
        move.rows, move.width,
    )  # fmt: skip


def _views(move: Move) -> tuple[Array, Array]:
    size = move.source.itemsize
    shape = (move.rows, move.width)
    return (
        np.ndarray(
            shape, move.source.dtype, move.source,
            move.source_start * size, (move.source_stride * size, size),
        ),
        np.ndarray(
            shape, move.target.dtype, move.target,
            move.target_start * size, (move.target_stride * size, size),
        ),
    )  # fmt: skip


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
    within = np.arange(total) - np.repeat(ends - lengths, lengths)
    index: Array = np.repeat(starts, lengths) + steps * within
    return index
