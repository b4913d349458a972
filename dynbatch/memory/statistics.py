"""`Statistics` counts what passes through it; above and below an allocator it shows the waste."""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.memory.resource import Adaptor, Buffer, Resource


class Statistics(Adaptor):
    """Counts bytes and calls.

    Attributes:
        requested_bytes: asked for, of the buffers that are in use now.
        rounded_bytes:   of the same buffers, as large as the upstream made them.
        peak_requested_bytes, peak_rounded_bytes: the most of each so far.
        allocations:     that succeeded.
        frees:           of them, given back.
        failures:        allocations that raised MemoryError.
    """

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self.requested_bytes = self.peak_requested_bytes = 0
        self.rounded_bytes = self.peak_rounded_bytes = 0
        self.allocations = self.frees = self.failures = 0
        self._requested: dict[int, int] = {}

    def allocate(self, size: int) -> Buffer:
        """What the upstream gives."""
        try:
            buffer = self.upstream.allocate(size)
        except MemoryError:
            self.failures += 1
            raise
        self.allocations += 1
        self._requested[buffer.address] = size
        self.requested_bytes += size
        self.rounded_bytes += buffer.size
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)
        self.peak_rounded_bytes = max(self.peak_rounded_bytes, self.rounded_bytes)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Hand the buffer on to the upstream."""
        self.requested_bytes -= self._requested.pop(buffer.address)
        self.rounded_bytes -= buffer.size
        self.frees += 1
        self.upstream.free(buffer)


@dataclass(frozen=True)
class MemoryStatistics:
    """What an allocator between two `Statistics` holds now, and did so far. Sizes in bytes.

    Args:
        requested_bytes:      in use, as it was asked for.
        rounded_bytes:        in use, as it was given: `requested_bytes` and internal waste.
        reserved_bytes:       taken from the upstream: `rounded_bytes` and what is free.
        largest_free_bytes:   the largest request that would not need the upstream.
        peak_requested_bytes, peak_rounded_bytes, peak_reserved_bytes: the most of each so far.
        allocations, frees:   calls that succeeded.
        upstream_allocations, upstream_frees: the same, of the upstream.
    """

    requested_bytes: int
    rounded_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    peak_requested_bytes: int
    peak_rounded_bytes: int
    peak_reserved_bytes: int
    allocations: int
    frees: int
    upstream_allocations: int
    upstream_frees: int

    @property
    def internal_bytes(self) -> int:
        """Internal fragmentation: what buffers in use have beyond what was asked for."""
        return self.rounded_bytes - self.requested_bytes

    @property
    def free_bytes(self) -> int:
        """Held and not in use: external fragmentation, if it were needed now."""
        return self.reserved_bytes - self.rounded_bytes

    @property
    def scattered_bytes(self) -> int:
        """What is free beside the largest stretch: a request cannot have it in one piece."""
        return self.free_bytes - self.largest_free_bytes


def statistics_of(above: Statistics, below: Statistics) -> MemoryStatistics:
    """The statistics of the allocator between two counters."""
    return MemoryStatistics(
        requested_bytes=above.requested_bytes,
        rounded_bytes=above.rounded_bytes,
        reserved_bytes=below.rounded_bytes,
        largest_free_bytes=above.largest_free(),
        peak_requested_bytes=above.peak_requested_bytes,
        peak_rounded_bytes=above.peak_rounded_bytes,
        peak_reserved_bytes=below.peak_rounded_bytes,
        allocations=above.allocations,
        frees=above.frees,
        upstream_allocations=below.allocations,
        upstream_frees=below.frees,
    )
