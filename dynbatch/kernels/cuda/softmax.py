"""Launches of `softmax.cu`. Matrices and offsets are device arrays or addresses."""

from __future__ import annotations

from typing import Any, NamedTuple

from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.cuda.move import SEGMENTS, segment_blocks


class Segments(NamedTuple):
    """Which rows belong together.

    num_segments: K.
    offsets:      (K + 1,) int32 non-decreasing, or None where all have `length` rows.
    length:       rows of every segment, read only without offsets.
    """

    num_segments: int
    offsets: Any
    length: int = 0


def softmax(kernels: Kernels, x: Any, segments: Segments, out: Any, width: int) -> None:
    """out_i = exp(x_i - m) / Σ_j exp(x_j - m), with m the maximum of the segment and column.

    Args:
        x:   (N, width).
        out: (N, width), overwritten; may be `x`. NaN where a whole segment is -inf.
    """
    _launch(kernels, "softmax", (x, out), segments, width)


def log_softmax(kernels: Kernels, x: Any, segments: Segments, out: Any, width: int) -> None:
    """out_i = x_i - m - log Σ_j exp(x_j - m), with m the maximum of the segment and column.

    Args:
        x:   (N, width).
        out: (N, width), overwritten; may be `x`. NaN where a whole segment is -inf.
    """
    _launch(kernels, "log_softmax", (x, out), segments, width)


def softmax_backward(
    kernels: Kernels, dy: Any, y: Any, segments: Segments, out: Any, width: int
) -> None:
    """out = y ⊙ (dy - Σ_j dy_j y_j), summed within each segment and column.

    Args:
        dy, y: (N, width) gradient and value of the output.
        out:   (N, width), overwritten; may be `dy`.
    """
    _launch(kernels, "softmax_backward", (dy, y, out), segments, width)


def log_softmax_backward(
    kernels: Kernels, dy: Any, y: Any, segments: Segments, out: Any, width: int
) -> None:
    """out_i = dy_i - exp(y_i) Σ_j dy_j, summed within each segment and column.

    Args:
        dy, y: (N, width) gradient and value of the output.
        out:   (N, width), overwritten; may be `dy`.
    """
    _launch(kernels, "log_softmax_backward", (dy, y, out), segments, width)


def _launch(
    kernels: Kernels, name: str, matrices: tuple[Any, ...], segments: Segments, width: int
) -> None:
    columns = -(-width // 32)
    args = (*matrices, segments.offsets, segments.length, segments.num_segments, width)
    kernels.launch(name, (segment_blocks(segments.num_segments), columns), (32, SEGMENTS), args)
