"""Assigns each block of a run an offset in the arena, before the first kernel."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from dynbatch.memory.arena import FreeList
from dynbatch.recent import Recent

MOST_BY_SIZE = 2000
"""Above this many blocks, comparing each with all others takes longer than a run (about 0.3 s)."""

MOST_AGAIN = 500
"""Up to this many blocks, other orders are tried if the first leaves gaps."""
MANY = 500
"""From this many blocks on, NumPy finds the gaps faster than Python."""
TIGHT = 1.01
LIFTED = 4
"""Orders tried at last, with the block first that ended highest in the one before."""

CACHED = 64
MOST_CACHED = 1000
"""Above this many blocks a plan is not cached: such large graphs rarely repeat."""

Columns = tuple[tuple[int, ...], ...]
_known: Recent[Columns, tuple[int, tuple[int, ...]]] = Recent(CACHED)


@dataclass(slots=True, eq=False)
class Interval:
    """A block of the arena and its lifetime.

    Args:
        size:      elements.
        first:     stage of the first write.
        last:      stage of the last read, inclusive.
        alignment: its offset is a multiple of this many elements.
        cause:     what it is for, for reports.
        owner:     the node type that needs it, for reports.
        is_form:   whether it has what another one has, in 16 bits or widened from these.
    """

    size: int
    first: int
    last: int
    alignment: int = 1
    offset: int = field(default=-1)
    cause: str = ""
    owner: str = ""
    is_form: bool = False


def assign_offsets(
    sizes: Sequence[int], firsts: Sequence[int], lasts: Sequence[int], alignments: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """Elements of an arena, and the offset of each block in it, as `plan_offsets` finds them.

    Plans are cached by sizes and lifetimes, so an estimate and its run, or mini-batches of equal
    lengths, are planned once.

    Args:
        sizes, firsts, lasts, alignments: of each block, as in `Interval`.
    """
    if not sizes:
        return 0, ()
    key = (tuple(sizes), tuple(firsts), tuple(lasts), tuple(alignments))
    known = _known.find(key) if len(sizes) <= MOST_CACHED else None
    if known is not None:
        return known
    blocks = [Interval(*row) for row in zip(*key, strict=True)]
    total = plan_offsets(blocks)
    answer = total, tuple([block.offset for block in blocks])
    return _known.enter(key, answer) if len(sizes) <= MOST_CACHED else answer


def plan_offsets(intervals: Sequence[Interval]) -> int:
    """Set every interval's `offset` so that no two alive at once overlap; return the arena's size.

    Greedy, best fit: the largest block first, into the tightest gap between the blocks already
    placed that are alive at the same time. If the arena is then over `TIGHT` times the largest sum
    of what is alive, the largest product of size and lifetime goes first, then what is alive at the
    fullest stage, then the longest lifetime, and after it, `LIFTED` times, before all others the
    block that has ended highest; the smallest arena counts. That compares each
    block with all others, so more than `MOST_BY_SIZE` blocks (a network of operators in a chain)
    are placed in the order in which they are written, into the smallest gap that earlier ones left.

    Cost: O(n²) interval comparisons, for the tens of blocks of a sentence-grain model; O(n log n)
        from `MOST_BY_SIZE` on.
    Source: Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.2 (Greedy by Size for Offset
        Calculation). Our blocks are also aligned to their own width.
    """
    if len(intervals) > MOST_BY_SIZE:
        return _plan_by_time(intervals)
    best, bound = place_in_order(by_size(intervals)), TIGHT * live_peak(intervals)
    if len(intervals) > MOST_AGAIN or best <= bound:
        return best
    offsets = [block.offset for block in intervals]
    order: list[Interval] = []
    for make in (by_area, by_peak, by_lifetime, *[None] * LIFTED):
        if make is None and best <= bound:
            break
        order = highest_first(order) if make is None else make(intervals)
        total = place_in_order(order)
        if total < best:
            best, offsets = total, [block.offset for block in intervals]
    for block, offset in zip(intervals, offsets, strict=True):
        block.offset = offset
    return best


def by_size(intervals: Sequence[Interval]) -> list[Interval]:
    return sorted(intervals, key=lambda block: -block.size)


def by_area(intervals: Sequence[Interval]) -> list[Interval]:
    """The largest product of size and lifetime first."""
    end = last_stage(intervals)
    return sorted(intervals, key=lambda b: -b.size * (min(b.last, end) - b.first + 1))


def by_lifetime(intervals: Sequence[Interval]) -> list[Interval]:
    """The longest lifetime first, and of equals the largest."""
    end = last_stage(intervals)
    return sorted(intervals, key=lambda block: (block.first - min(block.last, end), -block.size))


def by_peak(intervals: Sequence[Interval]) -> list[Interval]:
    """All that is alive at the fullest stage first, then the rest; each the largest first."""
    stage, _ = fullest_stage(intervals)
    return sorted(intervals, key=lambda b: (not b.first <= stage <= b.last, -b.size))


def highest_first(order: Sequence[Interval]) -> list[Interval]:
    """The order, with the block that ended highest when it was placed before all others."""
    highest = max(order, key=lambda block: block.offset + block.size)
    return sorted(order, key=lambda block: block is not highest)


def last_stage(intervals: Sequence[Interval]) -> int:
    """The last stage in which a block is written; some blocks never die."""
    return max([block.first for block in intervals], default=0)


def place_in_order(intervals: Sequence[Interval]) -> int:
    """Place each block, in this order, into the tightest gap that fits; return the arena's size."""
    if len(intervals) >= MANY:
        return _place_many([block for block in intervals if block.size], intervals)
    placed: list[tuple[int, int, int, int]] = []
    total = 0
    for block in intervals:
        if block.size == 0:
            block.offset = 0
            continue
        offset = block.offset = _best_gap(block, placed)
        total = max(total, offset + block.size)
        insort(placed, (offset, offset + block.size, block.first, block.last))
    return total


def _place_many(blocks: Sequence[Interval], intervals: Sequence[Interval]) -> int:
    """Place blocks as `place_in_order` does, all gaps for one block at once."""
    for block in intervals:
        block.offset = 0
    firsts = np.array([block.first for block in blocks])
    lasts = np.array([block.last for block in blocks])
    starts, ends = np.zeros((2, len(blocks)), np.int64)
    for number, block in enumerate(blocks):
        alive = (lasts[:number] >= block.first) & (firsts[:number] <= block.last)
        (others,) = alive.nonzero()
        others = others[np.argsort(starts[others], kind="stable")]
        gaps = np.zeros(len(others) + 1, np.int64)
        np.maximum.accumulate(ends[others], out=gaps[1:])
        gaps = -(-gaps // block.alignment) * block.alignment
        rooms = starts[others] - gaps[:-1]
        fitting = np.flatnonzero(rooms >= block.size)
        best = fitting[rooms[fitting].argmin()] if fitting.size else -1
        block.offset = int(gaps[best])
        starts[number], ends[number] = block.offset, block.offset + block.size
    return int(ends.max(initial=0))


def _plan_by_time(intervals: Sequence[Interval]) -> int:
    free = FreeList()
    total = 0
    alive: list[tuple[int, int, int]] = []
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].size, i))
    for i in order:
        block = intervals[i]
        while alive and alive[0][0] < block.first:
            _, start, end = heappop(alive)
            free.give(start, end)
        if block.size == 0:
            block.offset = 0
            continue
        offset = free.take(block.size, block.alignment)
        if offset is None:  # grow, from the stretch on that is free at the end
            begin = free.cut(total)
            offset = _align(begin, block.alignment)
            end = max(total, offset + block.size)
            free.give(begin, offset)
            free.give(offset + block.size, end)
            total = end
        block.offset = offset
        heappush(alive, (block.last, offset, offset + block.size))
    return total


def _best_gap(block: Interval, placed: Sequence[tuple[int, int, int, int]]) -> int:
    """The start of the tightest gap; `placed` are offset, end, first and last stage of others."""
    size, born, died = block.size, block.first, block.last
    best, best_room = -1, 0
    end = 0
    for offset, stop, first, last in placed:
        if first <= died and born <= last:
            if offset - end >= size:
                start = _align(end, block.alignment)
                room = offset - start
                if room >= size and (best < 0 or room < best_room):
                    best, best_room = start, room
            if stop > end:
                end = stop
    return best if best >= 0 else _align(end, block.alignment)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def live_peak(intervals: Sequence[Interval]) -> int:
    """The largest number of elements alive at one stage: a lower bound for every plan."""
    return fullest_stage(intervals)[1]


def fullest_stage(intervals: Sequence[Interval]) -> tuple[int, int]:
    """The first stage with the most elements alive, and their number."""
    changes: dict[int, int] = {}
    for block in intervals:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    alive = peak = fullest = 0
    for stage in sorted(changes):
        alive += changes[stage]
        if alive > peak:
            fullest, peak = stage, alive
    return fullest, peak
