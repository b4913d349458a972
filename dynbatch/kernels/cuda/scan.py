"""Launches of `scan.cu`. Matrices are given by address and row stride: a scan has no arrays."""

from __future__ import annotations

from typing import Any

from dynbatch.kernels.cuda.queue import Array, Queue

THREADS = 256


def pick_rows(
    queue: Queue,
    dtype: Any,
    source: tuple[int, int],
    other: tuple[int, int] | None,
    index: Array,
    target: tuple[int, int],
    width: int,
) -> None:
    """target[i] = source[index[i]], or other[-1 - index[i]] where the index is negative.

    Args:
        source, target: (address, elements from a row to the next).
        other:          the same, or None for zeros.
        index:          (rows,) integers of the host.
    """
    grid, block = _shape(len(index), width)
    args = (*source, *(other or (None, 0)), index, *target, len(index), width)
    queue.launch(dtype, "pick_rows", grid, block, args)


def move_columns(
    queue: Queue,
    dtype: Any,
    source: tuple[int, int],
    target: tuple[int, int],
    rows: int,
    width: int,
    add: bool,
) -> None:
    """target = source, or target += source, for rows that are parts of wider ones."""
    grid, block = _shape(rows, width)
    queue.launch(dtype, "move_columns", grid, block, (*source, *target, rows, width, add))


def _shape(rows: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    across = min(THREADS, 1 << max(0, width - 1).bit_length())
    down = THREADS // across
    return (-(-rows // down), -(-width // across)), (across, down)
