"""Shares the updates of all parameters between threads, and keeps their scratch.

In NumPy an update is a dozen elementwise passes. Over whole parameters each pass would fetch
everything from memory again; over blocks that stay in cache only the first one does, and the
temporaries of a block live in scratch that is reused for the next. In C it is one pass without
scratch, whose memory is then never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.optimizers import ParameterSlice, update
from dynbatch.kernels.runtime import parallel

# Bytes of one array's block. Adam on 8 million float32, Zen 5, 1 MiB of L2 and 32 MiB of L3, ms on
# one / two threads: 128 KiB 15 / 17, 256 KiB 14 / 11, 1 MiB 12.5 / 7.3; everything in one block 20.
# Smaller blocks fit L2 but lose more to the interpreter's lock, handed over at every pass.
BLOCK_BYTES = 1 << 20
# A thread is worth waking for this many elements: Adam takes about 200 µs in NumPy, 60 in C.
LEAST_ELEMENTS = 1 << 17


class ShardScratch:
    """Scratch memory of each shard, kept from step to step.

    Args:
        num_arrays: arrays of one block's size that a rule writes to.
    """

    def __init__(self, num_arrays: int) -> None:
        self._num_arrays = num_arrays + 1  # and one for the rows of a sparse gradient, made dense
        self._shards: list[Array] = []

    def shards(self, count: int, least_bytes: int) -> list[Array]:
        """`count` separate (arrays, bytes) areas of uint8, each array of at least `least_bytes`."""
        wanted = -(-max(BLOCK_BYTES, least_bytes) // 64) * 64
        if self._shards and self._shards[0].shape[1] < wanted:
            self._shards.clear()
        while len(self._shards) < count:
            self._shards.append(np.empty((self._num_arrays, wanted), np.uint8))
        return self._shards[:count]


def run_updates(parts: Sequence[ParameterSlice], scratch: ShardScratch) -> None:
    """Run updates of the host, shared evenly between the threads.

    The result does not depend on the cuts: every element is updated on its own, by operations whose
    rounding IEEE 754 fixes.
    """
    parts = [part for part in parts if part.num_elements]
    total = sum([part.num_elements for part in parts])
    if not total:
        return
    num_shards = max(1, min(parallel.available(), total // LEAST_ELEMENTS))
    widest = max([part.unit_size * part.value.itemsize for part in parts])
    areas = scratch.shards(num_shards, widest)
    shares = share(parts, -(-total // num_shards))
    parallel.run(
        [partial(_run_share, each, area) for each, area in zip(shares, areas, strict=False)]
    )


Share = list[tuple[ParameterSlice, int, int]]


def share(parts: Sequence[ParameterSlice], elements: int) -> list[Share]:
    """Cut updates into shares of about `elements` elements, in order: (part, start, stop)."""
    shares: list[Share] = [[]]
    room = elements
    for part in parts:
        start = 0
        while start < part.num_units:
            if room <= 0:
                shares.append([])
                room = elements
            # Rounded up, so that the last share is never larger than the others.
            units = min(part.num_units - start, -(-room // part.unit_size))
            shares[-1].append((part, start, start + units))
            room -= units * part.unit_size
            start += units
    return shares


def _run_share(share: Share, scratch: Array) -> None:
    for part, start, stop in share:
        update(part, start, stop, scratch)
