"""`Arena`: a suballocator over few large regions, which splits and joins free memory."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from dynbatch.memory.resource import GRAIN_BYTES, Adaptor, Buffer, Resource, rounded

GROWTH = 1 / 4
TOLERATED = 1 / 32
"""A region this close to the expected size is not replaced."""

DEVIATIONS = 6.0
"""Deviations above the mean: with 64 summed lengths, a thousand steps like 48 stay below."""

LEARNED = 48
"""Steps after which their spread is known."""
EARLY = 1 / 8
"""The share beyond the most seen, until the spread is known."""


class FreeList:
    """Free stretches of a range of bytes or elements, split when taken and joined when freed.

    Best fit: the smallest stretch that is large enough comes first; ties go to the lowest.

    Cost: O(log n) comparisons to take or give, and a shift of the list of n stretches.
    Source: Knuth, The Art of Computer Programming 1, section 2.5 (best fit; boundary tags).
    """

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    @property
    def largest(self) -> int:
        """The size of the largest free stretch, or 0."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, size: int, alignment: int = 1) -> int | None:
        """Take `size` at a multiple of `alignment`; return the start, or None without room."""
        first = bisect_left(self._by_size, (size, 0))
        # A larger stretch may start so that less room is left; a few are tried.
        for room, start in self._by_size[first : first + 8]:
            offset = -(-start // alignment) * alignment
            if offset + size <= start + room:
                self.remove(start)
                self.put(start, offset)
                self.put(offset + size, start + room)
                return offset
        return None

    def give(self, start: int, end: int) -> None:
        """Free `start` to before `end`, and join it with its free neighbours."""
        if end in self._end_of:
            following = end
            end = self._end_of[following]
            self.remove(following)
        if start in self._start_of:
            start = self._start_of[start]
            self.remove(start)
        self.put(start, end)

    def put(self, start: int, end: int) -> None:
        """Free `start` to before `end`, which has no free neighbours; nothing if it is empty."""
        if start < end:
            insort(self._by_size, (end - start, start))
            self._end_of[start] = end
            self._start_of[end] = start

    def remove(self, start: int) -> None:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]

    def cut(self, end: int) -> int:
        """Remove the free stretch that ends at `end`, if any; return its start, else `end`."""
        start = self._start_of.get(end)
        if start is None:
            return end
        self.remove(start)
        return start


class Peaks:
    """Mean and deviation of the steps' peak bytes, and the largest peak.

    Args:
        growth: the upper bound of the expected peak, as a share beyond the largest seen.

    Source: Welford 1962 for the running mean and deviation.
    """

    def __init__(self, growth: float) -> None:
        self._growth = growth
        self.forget()

    def forget(self) -> None:
        self.count = 0
        self.most = 0
        self._mean = self._squares = 0.0

    def see(self, in_use: int) -> None:
        """Note that `in_use` bytes are in use now."""
        self.most = max(self.most, in_use)

    def end_step(self, peak: int) -> None:
        """Note the end of a step whose peak was `peak` bytes."""
        self.count += 1
        difference = peak - self._mean
        self._mean += difference / self.count
        self._squares += difference * (peak - self._mean)

    def expected(self) -> int:
        """Bytes that a later step may need: six deviations above the mean, within bounds."""
        if self.count < LEARNED:
            return self.beyond(self.most)
        deviation = math.sqrt(self._squares / (self.count - 1))
        highest = int((1 + self._growth) * self.most)
        return min(highest, max(self.most, int(self._mean + DEVIATIONS * deviation)))

    def beyond(self, size: int) -> int:
        """`size` and a share beyond it, for what no step before has told."""
        return int((1 + min(EARLY, self._growth)) * size)


@dataclass(slots=True)
class Slab:
    """One buffer of the upstream, and its offset in the range of all regions."""

    buffer: Buffer
    base: int
    in_use: int = 0


_base_of = attrgetter("base")


class Arena(Adaptor):
    """Best-fit suballocator with splitting and coalescing, over regions that grow into one.

    A request takes the smallest free stretch that has room. A free stretch is one with its free
    neighbours of the same region. Where no stretch has room, the regions that are not in use at all
    are given back, and a new one is allocated: as large as the request, and so large that all
    regions together hold what a step is expected to need (`Peaks`). When nothing is in use, a step
    is over: several regions become one, and after `LEARNED` steps one of the size that these
    tell takes its place.

    So training on mini-batches of varying sizes ends in one region that holds the largest, and asks
    the upstream no more. Internal waste is below 256 bytes a buffer.

    Args:
        upstream: where regions come from.
        growth:   the most room beyond what was ever in use, as a share of it. Where steps vary
                  less, there is less.

    Source: Wilson et al. 1995, "Dynamic storage allocation: a survey and critical review", section
        3.4 (best fit, immediate coalescing); regions as in RMM's `arena_memory_resource`.
    """

    def __init__(self, upstream: Resource, growth: float = GROWTH) -> None:
        super().__init__(upstream)
        self._peaks = Peaks(growth)
        self._regions: list[Slab] = []  # in order of `base`
        self._free = FreeList()
        self._taken: dict[int, tuple[Slab, int]] = {}
        self._end = 0
        self._in_use = self._step_peak = 0
        self._scattered = 0  # of requests that found enough free, but not in one piece
        self._refused = 0  # what would have been in use after the last request that failed

    def allocate(self, size: int) -> Buffer:
        """A part of a region; a multiple of 256 bytes."""
        size = rounded(size)
        if not self._taken and self._is_unfit():
            self._grow(size)
        start = self._free.take(size)
        if start is None:
            is_scattered = self._in_use + size <= self._reserved()
            self._grow(size)
            self._scattered += size if is_scattered else 0
            start = self._free.take(size)
            assert start is not None
        region = self._regions[bisect_right(self._regions, start, key=_base_of) - 1]
        buffer = region.buffer.part(start - region.base, size)
        self._taken[buffer.address] = region, start
        region.in_use += 1
        self._in_use += size
        self._step_peak = max(self._step_peak, self._in_use)
        self._peaks.see(self._in_use)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Join the part with its free neighbours."""
        region, start = self._taken.pop(buffer.address)
        region.in_use -= 1
        self._in_use -= buffer.size
        self._free.give(start, start + buffer.size)
        if not self._taken:
            self._peaks.end_step(self._step_peak)
            self._step_peak = 0

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Cut all regions anew into what is in use and what is free."""
        taken = {buffer.address: self._taken[buffer.address] for buffer in in_use}
        free, ends = FreeList(), {region.base: region.base for region in self._regions}
        for region in self._regions:
            region.in_use = 0
        sizes = {self._taken[buffer.address][1]: buffer.size for buffer in in_use}
        for region, start in sorted(taken.values(), key=itemgetter(1)):
            free.put(ends[region.base], start)
            ends[region.base] = start + sizes[start]
            region.in_use += 1
        for region in self._regions:
            free.put(ends[region.base], region.base + region.buffer.size)
        self._in_use = sum(sizes.values())
        self.upstream.restore([region.buffer for region in self._regions])
        self._taken, self._free = taken, free

    def release(self) -> None:
        """Return unused regions to the upstream, and forget earlier peaks."""
        self._release()
        self._scattered = 0
        self._peaks.forget()
        self._peaks.see(self._in_use)
        self.upstream.release()

    def largest_free(self) -> int:
        """The size of the largest free stretch."""
        return self._free.largest

    def _reserved(self) -> int:
        return sum([region.buffer.size for region in self._regions])

    def _is_unfit(self) -> bool:
        """Whether one new region should replace all, now that none is in use."""
        reserved = self._reserved()
        if len(self._regions) > 1 or self._refused > reserved:
            return True
        difference = abs(self._peaks.expected() + self._scattered - reserved)
        return self._peaks.count == LEARNED and difference > TOLERATED * reserved

    def _release(self) -> None:
        unused = [region for region in self._regions if not region.in_use]
        # First they are forgotten: `restore` then has the upstream free those that were left.
        self._regions = [region for region in self._regions if region.in_use]
        for region in unused:
            self._free.remove(region.base)
            self.upstream.free(region.buffer)

    def _grow(self, size: int) -> None:
        self._release()
        held = self._reserved()
        least = max(self._peaks.most, self._refused)
        # A step of many requests that outgrows all before it adds regions by a share of what it
        # holds: they stay few.
        likely = max(self._peaks.expected(), least, self._peaks.beyond(held))
        for total in (likely, least, -self._scattered):
            wanted = max(size, rounded(total + self._scattered) - held)
            try:
                buffer = self.upstream.allocate(wanted)
                break
            except MemoryError:
                if wanted == size:
                    self._refused = self._in_use + size
                    raise
        self._refused = 0
        # Regions never touch on the line, whatever their addresses: stretches end with a region.
        region = Slab(buffer, self._end)
        self._end += buffer.size + GRAIN_BYTES
        self._regions.append(region)
        self._free.give(region.base, region.base + buffer.size)
