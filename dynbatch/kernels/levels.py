"""`levels`: the longest chain of calls that each of many waits for."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import bincount, repeat
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(at=1, c=HOST)
def levels(count: int, readers: Array, read: Array) -> Array:
    """(N,) the edges of the longest path that ends at each call.

    Cost: O(calls + edges · log edges), in a few functions of NumPy for each level.

    Args:
        count:         of the calls, N.
        readers, read: (M,) int64, both ends of each edge; there is no circle.
    """
    depth = np.zeros(count, np.int64)
    readers = readers[np.argsort(read, kind="stable")]
    num_readers = bincount(read, minlength=count)
    ends = np.cumsum(num_readers)
    waiting = bincount(readers, minlength=count)
    ready, level = np.flatnonzero(waiting == 0), 0
    while ready.size:
        depth[ready] = level
        sizes = num_readers[ready]
        shifts = ends[ready] - np.cumsum(sizes)
        reached = readers[repeat(shifts, sizes) + np.arange(sizes.sum())]
        np.subtract.at(waiting, reached, 1)
        ready, level = np.unique(reached[waiting[reached] == 0]), level + 1
    return depth
