"""Launches of `softmax.cu`: softmax and log-softmax within segments."""

from __future__ import annotations

from typing import Any

from dynbatch.kernels.cuda.segments import over_segments
from dynbatch.kernels.matrices import Segments


def softmax(x: Any, offsets: Segments, out: Any) -> None:
    """out_i = exp(x_i - m) / Σ_j exp(x_j - m), with m the maximum of the segment and column."""
    over_segments("softmax", (x, out), offsets, out.shape[1])


def log_softmax(x: Any, offsets: Segments, out: Any) -> None:
    """out_i = x_i - m - log Σ_j exp(x_j - m), with m the maximum of the segment and column."""
    over_segments("log_softmax", (x, out), offsets, out.shape[1])


def softmax_backward(dy: Any, y: Any, offsets: Segments, out: Any) -> None:
    """out = y ⊙ (dy - Σ_j dy_j y_j), summed within each segment and column."""
    over_segments("softmax_backward", (dy, y, out), offsets, out.shape[1])


def log_softmax_backward(dy: Any, y: Any, offsets: Segments, out: Any) -> None:
    """out_i = dy_i - exp(y_i) Σ_j dy_j, summed within each segment and column."""
    over_segments("log_softmax_backward", (dy, y, out), offsets, out.shape[1])
