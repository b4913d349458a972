"""`Buddy`: blocks of powers of two, halved and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbatch.memory.resource import GRAIN_BYTES, Adaptor, Buffer, Resource


@dataclass(slots=True)
class BuddyRegion:
    """One buffer of the upstream, 2^order bytes, and its offset in the range of all regions."""

    buffer: Buffer
    base: int
    order: int
    in_use: int = 0


@dataclass(slots=True)
class BuddyBlock:
    """A part of a region that is in use."""

    region: BuddyRegion
    start: int
    order: int


class Buddy(Adaptor):
    """The binary buddy system: a block of 2^k bytes is two halves, which join when both are free.

    A block's buddy begins at its own begin xor its size. A request is rounded up to a power of two,
    so that up to half of a block is internal waste; in return, finding, splitting and joining take
    at most as many operations as there are orders.

    Where no block has room, the regions that are not in use are given back and one is allocated
    instead which is as large as they were together, rounded up to a power of two as well.

    Args:
        upstream: where regions come from.

    Source: Knowlton 1965; Knuth, The Art of Computer Programming 1, section 2.5, algorithms R, S.
    """

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._regions: list[BuddyRegion] = []
        self._free: dict[
            int, dict[int, BuddyRegion]
        ] = {}  # order -> begin -> region; the last is taken
        self._taken: dict[int, BuddyBlock] = {}
        self._end = 0

    def allocate(self, size: int) -> Buffer:
        """The first part of the smallest free block, halved as often as it can be."""
        wanted = order_of(size)
        order = self._smallest(wanted)
        if order is None:
            self._grow(wanted)
            order = self._smallest(wanted)
            assert order is not None
        start, region = self._free[order].popitem()
        self._halve(region, start, order, start, wanted)
        buffer = region.buffer.part(start - region.base, 1 << wanted)
        self._taken[buffer.address] = BuddyBlock(region, start, wanted)
        region.in_use += 1
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Join the block with its buddy, and both with theirs, as long as buddies are free."""
        block = self._taken.pop(buffer.address)
        region, start, order = block.region, block.start, block.order
        region.in_use -= 1
        while order < region.order:
            free, buddy = self._free.get(order, {}), start ^ (1 << order)
            if buddy not in free:
                break
            del free[buddy]
            start, order = min(start, buddy), order + 1
        self._free.setdefault(order, {})[start] = region

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Cut all regions anew into what is in use and what is free."""
        self._taken = {buffer.address: self._taken[buffer.address] for buffer in in_use}
        self._free = {}
        for region in self._regions:
            region.in_use = 0
            self._free.setdefault(region.order, {})[region.base] = region
        for block in self._taken.values():
            order, region = block.order, block.region
            while (start := block.start >> order << order) not in self._free.get(order, {}):
                order += 1
            del self._free[order][start]
            self._halve(region, start, order, block.start, block.order)
            region.in_use += 1
        self.upstream.restore([region.buffer for region in self._regions])

    def _halve(
        self, region: BuddyRegion, start: int, order: int, wanted: int, wanted_order: int
    ) -> None:
        """Cut a block until the wanted one is left; the other halves are free."""
        while order > wanted_order:
            order -= 1
            half = start + (1 << order)
            other, start = (half, start) if wanted < half else (start, half)
            self._free.setdefault(order, {})[other] = region

    def release(self) -> None:
        """Return unused regions to the upstream."""
        self._release()
        self.upstream.release()

    def largest_free(self) -> int:
        """The size of the largest free block."""
        return max([1 << order for order, free in self._free.items() if free], default=0)

    def _smallest(self, wanted: int) -> int | None:
        orders = [order for order, free in self._free.items() if free and order >= wanted]
        return min(orders, default=None)

    def _release(self) -> int:
        """Return unused regions to the upstream; return their bytes."""
        idle = [region for region in self._regions if not region.in_use]
        # First they are forgotten: `restore` then has the upstream free those that were left.
        self._regions = [region for region in self._regions if region.in_use]
        for region in idle:
            del self._free[region.order][region.base]
            self.upstream.free(region.buffer)
        return sum([1 << region.order for region in idle])

    def _grow(self, wanted: int) -> None:
        idle = self._release()
        order = max(wanted, order_of(idle))
        try:
            buffer = self.upstream.allocate(1 << order)
        except MemoryError:
            order = wanted
            buffer = self.upstream.allocate(1 << order)
        base = -(-self._end >> order) << order  # a multiple of its size, so that xor finds buddies
        self._end = base + (1 << order)
        region = BuddyRegion(buffer, base, order)
        self._regions.append(region)
        self._free.setdefault(order, {})[base] = region


def order_of(size: int) -> int:
    """The smallest k with size <= 2^k, and at least that of the smallest block."""
    return (max(size, GRAIN_BYTES) - 1).bit_length()
