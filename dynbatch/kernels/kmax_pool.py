"""The k largest rows of each segment, column by column, in their order."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.matrices import lengths_of
from dynbatch.kernels.runtime.dispatch import ROWS, SEGMENTS, kernel


@kernel(c=SEGMENTS, cuda=ROWS, most={"k": 64})
def kmax_pool(x: Array, offsets: Array, k: int, out: Array, place: Array | None) -> None:
    """out[s k], …, out[s k + k - 1] = the k largest of segment s in order, column by column.

    Of equal numbers the first count as larger; a NaN counts as infinite.

    Args:
        offsets: of segments of k rows or more.
        place:   (S k, D) integers as wide as x's elements, overwritten with each number's row in
            its segment, or None.
    """
    starts, lengths = offsets[:-1], lengths_of(offsets)
    segment = repeat(np.arange(starts.size), lengths)[:, None]
    falling = np.where(np.isnan(x), -np.inf, np.multiply(x, -1))
    order = np.lexsort((falling, np.broadcast_to(segment, x.shape)), axis=0)
    largest = order[(starts[:, None] + np.arange(k)).reshape(-1)]
    rows = np.sort(largest.reshape(-1, k, x.shape[1]), axis=1).reshape(out.shape)
    np.copyto(out, np.take_along_axis(x, rows, axis=0))
    if place is not None:
        np.subtract(rows, repeat(starts, k)[:, None], out=place, casting="unsafe")


@kernel(c=SEGMENTS, cuda=ROWS, most={"k": 64})
def kmax_pool_backward(dy: Array, offsets: Array, k: int, place: Array, out: Array) -> None:
    """out = dy in the rows that `kmax_pool` took it from, else 0.

    Args:
        place: (S k, D) from `kmax_pool`, or others that are different in each column, in any order.
    """
    out[...] = 0
    np.put_along_axis(out, place + repeat(offsets[:-1], k)[:, None], dy, axis=0)
