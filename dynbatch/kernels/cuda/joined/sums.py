"""Sums over many rows whose last launch they share: gradients of biases and of norms.

Rows are summed in parts at once, since their memory is needed again; the sums of the parts are
small, and are added up for all parameters together when the queue is settled.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.addresses import element_offsets
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.cuda.walks import parts_of_rows

MOST_PARTS = 64  # that a thread adds up one after the other
THREADS = 256  # columns of a block


def sum_parts(rows: Array) -> Array:
    """(P, D) sums of parts of the rows (N, D), in one launch, or of such sums."""
    parts = parts_of_rows(len(rows))
    sums = queue().empty((len(parts) - 1, rows.shape[1]), rows.dtype)
    reduce_segments(np.add, rows, parts, sums, 0)
    return sums


def sum_later(parts: Array, out: Array) -> None:
    """out (D,) = the sum of the parts (P, D), once the queue is settled; until then both stay."""
    while len(parts) > MOST_PARTS:
        parts = sum_parts(parts)
    queue().postpone(_sum, (parts, out))


def _sum(sums: list[tuple[Array, Array]]) -> None:
    """Carry out what was postponed, in one launch for each dtype."""
    for _, group in groupby(sorted(sums, key=_dtype), key=_dtype):
        _sum_together(list(group))


def _dtype(item: tuple[Array, Array]) -> str:
    return item[1].dtype.char


def _sum_together(sums: list[tuple[Array, Array]]) -> None:
    base = sums[0][1]
    sources = element_offsets(base, [parts for parts, _ in sums])
    targets = element_offsets(base, [out for _, out in sums])
    counts, widths = np.array([parts.shape for parts, _ in sums], np.int64).T
    blocks = -(-widths // THREADS)
    entries = np.column_stack((np.cumsum(blocks) - blocks, sources, counts, widths, targets))
    launch(base, "sum_parts", (int(blocks.sum()),), (THREADS,), (base, entries, len(sums)))
