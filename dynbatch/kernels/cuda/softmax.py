"""Launches of `softmax.cu`: softmax and log-softmax within segments."""

from __future__ import annotations

from typing import Any

from dynbatch.kernels.cuda.queue import launch
from dynbatch.kernels.cuda.segments import ROWS_OF_BLOCK, Array, segment_blocks, segment_table


def softmax(x: Any, offsets: Array, out: Any) -> None:
    """out_i = exp(x_i - m) / Σ_j exp(x_j - m), with m the maximum of the segment and column."""
    _launch("softmax", (x, out), offsets, out)


def log_softmax(x: Any, offsets: Array, out: Any) -> None:
    """out_i = x_i - m - log Σ_j exp(x_j - m), with m the maximum of the segment and column."""
    _launch("log_softmax", (x, out), offsets, out)


def softmax_backward(dy: Any, y: Any, offsets: Array, out: Any) -> None:
    """out = y ⊙ (dy - Σ_j dy_j y_j), summed within each segment and column."""
    _launch("softmax_backward", (dy, y, out), offsets, out)


def log_softmax_backward(dy: Any, y: Any, offsets: Array, out: Any) -> None:
    """out_i = dy_i - exp(y_i) Σ_j dy_j, summed within each segment and column."""
    _launch("log_softmax_backward", (dy, y, out), offsets, out)


def _launch(name: str, matrices: tuple[Any, ...], offsets: Array, out: Any) -> None:
    width = out.shape[1]
    table, length = segment_table(offsets)
    segments = len(offsets) - 1
    grid = (segment_blocks(segments), -(-width // 32))
    launch(out, name, grid, (32, ROWS_OF_BLOCK), (*matrices, table, length, segments, width))
