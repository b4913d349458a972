"""Launches of `kmax_pool.cu`: the k largest rows of each segment."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import launch
from dynbatch.kernels.cuda.walks import row_grid, segment_table


def kmax_pool(x: Array, offsets: Array, k: int, out: Array, place: Array | None) -> None:
    """out[s k], …, out[s k + k - 1] = the k largest of segment s in order, column by column."""
    _over_columns("kmax_pool", (x, out, place), offsets, k)


def kmax_pool_backward(dy: Array, offsets: Array, k: int, place: Array, out: Array) -> None:
    """out = dy in the rows that `kmax_pool` took it from, else 0."""
    _over_columns("kmax_pool_backward", (dy, place, out), offsets, k)


def _over_columns(name: str, arrays: tuple[Array | None, ...], offsets: Array, k: int) -> None:
    like, count = arrays[0], len(offsets) - 1
    assert like is not None
    grid, block = row_grid(count, like.shape[1])
    launch(like, name, grid, block, (*arrays, *segment_table(offsets), count, like.shape[1], k))
