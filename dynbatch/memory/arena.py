"""`Arena`: few large regions of an upstream, cut to size and joined again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from dynbatch.memory.expected_peak import LEARNED, Peaks
from dynbatch.memory.free_list import FreeList
from dynbatch.memory.resource import GRAIN_BYTES, Adaptor, Buffer, Resource, rounded

GROWTH = 1 / 4
TOLERATED = 1 / 32
"""Of a region: a difference to what is expected that is not worth another one."""


@dataclass(slots=True)
class Slab:
    """One buffer of the upstream, and where it lies on the line of all regions."""

    buffer: Buffer
    base: int
    in_use: int = 0


class Arena(Adaptor):
    """Best-fit suballocator with splitting and coalescing, over regions that grow into one.

    A request takes the smallest free stretch that has room. A free stretch is one with its free
    neighbours of the same region. Where no stretch has room, the regions that are not in use at all
    are given back, and a new one is allocated: as large as the request, and so large that all
    regions together hold what a step is expected to need (`Peaks`). When nothing is in use, a step
    is over: several regions become one, and after `peaks.LEARNED` steps one of the size that these
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
        self._bases: list[int] = []
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
        region = self._regions[bisect_right(self._bases, start) - 1]
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

    def release(self) -> None:
        """Give back the regions that are not in use at all, and forget what was in use once."""
        self._release()
        self._scattered = 0
        self._peaks.forget()
        self._peaks.see(self._in_use)
        self.upstream.release()

    def largest_free(self) -> int:
        """The size of the largest stretch."""
        return self._free.largest

    def _reserved(self) -> int:
        return sum([region.buffer.size for region in self._regions])

    def _is_unfit(self) -> bool:
        """Whether another region should take the place of all, now that none is in use."""
        reserved = self._reserved()
        if len(self._regions) > 1 or self._refused > reserved:
            return True
        difference = abs(self._peaks.expected() + self._scattered - reserved)
        return self._peaks.count == LEARNED and difference > TOLERATED * reserved

    def _release(self) -> None:
        for region in self._regions:
            if not region.in_use:
                self._free.remove(region.base)
                self.upstream.free(region.buffer)
        self._regions = [region for region in self._regions if region.in_use]
        self._bases = [region.base for region in self._regions]

    def _grow(self, size: int) -> None:
        self._release()
        held = self._reserved()
        least = max(self._peaks.most, self._refused)
        for total in (max(self._peaks.expected(), least), least, -self._scattered):
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
        self._bases.append(region.base)
        self._free.give(region.base, region.base + buffer.size)
