"""Keys of calls: hashes of all that each descends from, as `nodes.stream` has them of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from zlib import crc32

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(c=HOST)
def keys_of_calls(
    reads: Array, counts: Array, begins: Sequence[int], is_continued: bool
) -> tuple[Array, Array]:
    """The keys of calls that may read each other, and before them those of their edges.

        key(call) = crc32("key, key, …]" of what it reads, begin)

    Args:
        reads:  (E,) int64, what the calls read, one after the other: a key, or -1 - k for call k of
            these, an earlier one.
        counts: (K,) int64, how much each call reads.
        begins: the hash of the text before; where there are two, the second is that of edges: each
            number that is read is then read by an edge, a call with a key of its own, and the call
            reads its edges.
        is_continued: whether that text ends in a key.

    Returns:
        (E,) and (K,) int64, those of edges, if any, and of calls.
    """
    edges, keys = reads.copy(), np.empty_like(counts)

    def key(begin: int, read: Sequence[int]) -> int:
        texts = [""] * (is_continued and bool(read)) + [str(number) for number in read]
        return crc32(f"{', '.join(texts)}]".encode(), begin)

    ends = accumulate(counts.tolist())
    for k, (end, count) in enumerate(zip(ends, counts.tolist(), strict=True)):
        for e in range(end - count, end):
            edges[e] = keys[-1 - reads[e]] if reads[e] < 0 else reads[e]
            if len(begins) > 1:
                edges[e] = key(begins[1], [edges[e]])
        keys[k] = key(begins[0], edges[end - count : end].tolist())
    return edges, keys
