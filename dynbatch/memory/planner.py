"""Where each block of a run lies in its arena, decided before the first kernel."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

MOST_BY_SIZE = 2000
"""Blocks above which comparing each with all others takes longer than a run (about 0.3 s)."""


@dataclass(slots=True)
class Interval:
    """A block of the arena and when it is alive.

    Args:
        size:      elements.
        first:     stage of the first write.
        last:      stage of the last read, inclusive.
        alignment: its offset is a multiple of this many elements.
        cause:     what it is for, for reports.
        kind:      the node type that needs it, for reports.
    """

    size: int
    first: int
    last: int
    alignment: int = 1
    offset: int = field(default=-1)
    cause: str = ""
    kind: str = ""


def plan_offsets(intervals: Sequence[Interval]) -> int:
    """Set every interval's `offset` so that no two alive at once overlap; return the arena's size.

    Greedy by size, best fit: the largest block first, into the tightest gap between the blocks
    already placed that are alive at the same time. That compares each block with all others, so
    more than `MOST_BY_SIZE` blocks (a network of operators in a chain) are placed in the order in
    which they are written, into the smallest gap that earlier ones left.

    Cost: O(n²) interval comparisons, for the tens of blocks of a sentence-grain model; O(n log n)
        from `MOST_BY_SIZE` on.
    Source: Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.2 (Greedy by Size for Offset
        Calculation). Our blocks are also aligned to their own width.
    """
    if len(intervals) > MOST_BY_SIZE:
        return _plan_by_time(intervals)
    placed: list[Interval] = []
    total = 0
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i].size, i))
    for i in order:
        block = intervals[i]
        if block.size == 0:
            block.offset = 0
            continue
        block.offset = _best_gap(block, placed)
        total = max(total, block.offset + block.size)
        _insert(placed, block)
    return total


def _plan_by_time(intervals: Sequence[Interval]) -> int:
    gaps = Gaps()
    alive: list[tuple[int, int, int]] = []
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].size, i))
    for i in order:
        block = intervals[i]
        while alive and alive[0][0] < block.first:
            _, start, end = heappop(alive)
            gaps.give(start, end)
        block.offset = gaps.take(block.size, block.alignment) if block.size else 0
        if block.size:
            heappush(alive, (block.last, block.offset, block.offset + block.size))
    return gaps.end


class Gaps:
    """Free stretches below an end that grows; neighbours are joined.

    Attributes:
        end: elements that have been in use at some time.
    """

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def take(self, size: int, alignment: int) -> int:
        """The offset of a stretch: in the smallest gap that has room, or at the end."""
        place = bisect_left(self._by_size, (size, 0))
        # A larger gap may start so that less room is left; a few are tried.
        for room, start in self._by_size[place : place + 8]:
            offset = _align(start, alignment)
            if offset + size <= start + room:
                self._remove(start)
                self._add(start, offset)
                self._add(offset + size, start + room)
                return offset
        offset = _align(self.end, alignment)
        before, self.end = self.end, offset + size
        self._add(before, offset)
        return offset

    def give(self, start: int, end: int) -> None:
        """A stretch is free again."""
        if end in self._end_of:
            following = end
            end = self._end_of[following]
            self._remove(following)
        if start in self._start_of:
            start = self._start_of[start]
            self._remove(start)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            insort(self._by_size, (end - start, start))
            self._end_of[start] = end
            self._start_of[end] = start

    def _remove(self, start: int) -> None:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]


def _best_gap(block: Interval, placed: Sequence[Interval]) -> int:
    best, best_room = -1, 0
    end = 0
    for other in placed:
        if other.last < block.first or block.last < other.first:
            continue
        start = _align(end, block.alignment)
        room = other.offset - start
        if room >= block.size and (best < 0 or room < best_room):
            best, best_room = start, room
        end = max(end, other.offset + other.size)
    return best if best >= 0 else _align(end, block.alignment)


def _insert(placed: list[Interval], block: Interval) -> None:
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if placed[middle].offset < block.offset:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, block)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def live_peak(intervals: Sequence[Interval]) -> int:
    """The largest number of elements alive at one stage: no plan can need less."""
    changes: dict[int, int] = {}
    for block in intervals:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    alive = peak = 0
    for stage in sorted(changes):
        alive += changes[stage]
        peak = max(peak, alive)
    return peak
