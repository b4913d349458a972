"""The largest elements of each row, in order."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(cuda=HOST)
def rank_rows(x: Array, out: Array) -> None:
    """Places of the largest elements of each row, the largest first; of equal ones the first.

    Args:
        x:   (N, V).
        out: (N, K) integers of 4 or 8 bytes, K <= V, overwritten.
    """
    count, width = out.shape[1], x.shape[1]
    least = np.partition(x, width - count, axis=1)[:, width - count]
    rows, places = np.nonzero(~(x < least[:, None]))  # of NaN as well
    order = np.lexsort((places, -x[rows, places], rows))
    firsts = np.searchsorted(rows, np.arange(len(x)))
    out[...] = places[order[firsts[:, None] + np.arange(count)]]


@kernel(cuda=HOST)
def take_from_rows(x: Array, places: Array, out: Array) -> None:
    """out[n, k] = x[n, places[n, k]], with places as `rank_rows` finds them."""
    out[...] = np.take_along_axis(x, places, axis=1)
