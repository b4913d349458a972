"""Launches of `cumulative.cu`: running sums within segments."""

from __future__ import annotations

from typing import Any

from dynbatch.kernels.cuda.segments import over_segments
from dynbatch.kernels.matrices import Segments


def cumsum_segments(x: Any, offsets: Segments, backwards: bool, out: Any) -> None:
    """out[n] = the sum of the segment's rows up to row n, or from row n on if `backwards`."""
    over_segments("cumsum_segments", (x, out), offsets, out.shape[1], backwards)
