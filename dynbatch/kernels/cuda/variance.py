"""Launches of `variance.cu`: variances and standard deviations of segments."""

from __future__ import annotations

from typing import Any

from dynbatch.kernels.cuda.segments import over_elements
from dynbatch.kernels.matrices import Segments


def squared_deviations(x: Any, mean: Any, offsets: Segments, out: Any) -> None:
    """out[n] = (x[n] - mean[k])² for every row n of segment k."""
    over_elements("squared_deviations", (x, mean), offsets, out)


def spread_backward(
    dy: Any, x: Any, mean: Any, y: Any, offsets: Segments, correction: float, root: bool, out: Any
) -> None:
    """out[n] = dy[k] times the slope of a variance, or of its root, by row n of segment k."""
    over_elements("spread_backward", (dy, x, mean, y), offsets, out, correction, root)
