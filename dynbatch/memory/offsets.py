"""Offsets of blocks, from a cache where the same blocks were placed before."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.memory.planner import Interval, plan_offsets
from dynbatch.recent import Recent

CACHED = 64
MOST_CACHED = 1000
"""Blocks above which a set is not kept: a graph so large is seldom built twice."""

_known: Recent[tuple[tuple[int, int, int, int], ...], tuple[int, list[int]]] = Recent(CACHED)


def place(intervals: Sequence[Interval]) -> int:
    """As `plan_offsets`; blocks of the same sizes and lifetimes cost a hash.

    So an estimate and the run that follows it, or mini-batches of the same lengths, are planned
    once.
    """
    if len(intervals) > MOST_CACHED:
        return plan_offsets(intervals)
    key = tuple([(i.size, i.first, i.last, i.alignment) for i in intervals])
    found = _known.find(key)
    if found is not None:
        total, offsets = found
        for interval, offset in zip(intervals, offsets, strict=True):
            interval.offset = offset
        return total
    total = plan_offsets(intervals)
    _known.enter(key, (total, [interval.offset for interval in intervals]))
    return total
