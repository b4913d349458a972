"""What kernels over ragged segments share: their grids, and how offsets become a table."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Warps of a block: each does a short segment, or all share a long one. At most as many segments go
# to a block.
ROWS_OF_BLOCK = 8
# Few segments get a block each, so that all multiprocessors have work.
MANY_BLOCKS = 1024


def segment_blocks(segments: int) -> int:
    """Blocks among which the segments are shared, at most `ROWS_OF_BLOCK` each."""
    return max(-(-segments // ROWS_OF_BLOCK), min(segments, MANY_BLOCKS))


def segment_table(offsets: Array) -> tuple[Array | None, int]:
    """The offsets as a table for the kernel, or None and the length that all segments have."""
    if len(offsets) < 2:
        return None, 0
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if not offsets[0] and (lengths == length).all():
        return None, length
    return offsets, length
