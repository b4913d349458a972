"""Where each block of a run lies in its arena, decided before the first kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Interval:
    """A block of the arena and when it is alive.

    Args:
        size:      elements.
        first:     stage of the first write.
        last:      stage of the last read, inclusive.
        alignment: its offset is a multiple of this many elements.
    """

    size: int
    first: int
    last: int
    alignment: int = 1
    offset: int = field(default=-1)


def plan_offsets(intervals: Sequence[Interval]) -> int:
    """Set every interval's `offset` so that no two alive at once overlap; return the arena's size.

    Greedy by size, best fit: the largest block first, into the tightest gap between the blocks
    already placed that are alive at the same time.

    Cost: O(n²) interval comparisons, for the tens of blocks of a sentence-grain model.
    Source: Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.2 (Greedy by Size for Offset
        Calculation). Our blocks are also aligned to their own width.
    """
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
