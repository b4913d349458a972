"""What every source of memory is: `allocate` gives a buffer, `free` takes it back.

A resource that keeps or counts something does it over another, its upstream, and knows no more of
it than this: `Statistics(Arena(Limit(HostMemory(), 1 << 30)))`. Here are those that keep nothing:
a limit, a second try, and counters, which above and below an allocator show the waste.

Source: the interface and its composition are those of RMM's `rmm::mr` (rapidsai/rmm,
cpp/include/rmm/mr).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dynbatch.parameter import Array

ALIGNMENT_BYTES = 64
"""Every buffer of the host begins at a multiple of it."""

GRAIN_BYTES = 256
"""Suballocators hand out multiples of it, which keeps what CUDA's driver aligns aligned."""


def rounded(size: int, multiple: int = GRAIN_BYTES) -> int:
    """`size` rounded up to a multiple; at least one of it."""
    return max(1, -(-size // multiple)) * multiple


class Buffer(ABC):
    """A stretch of memory.

    Attributes:
        address: of its first byte; of two buffers in use none has the other's.
        size:    bytes.
    """

    __slots__ = ("address", "size")

    address: int
    size: int

    @abstractmethod
    def part(self, offset: int, size: int) -> Buffer:
        """`size` bytes of it from `offset` on; it keeps the whole alive."""

    @abstractmethod
    def array(self, dtype: np.typing.DTypeLike) -> Array:
        """A one-dimensional array over it, of as many elements as it has room for."""


class Resource(ABC):
    """Gives buffers of raw bytes and takes them back. Not thread-safe by itself; `Pool` is.

    Attributes:
        name: whose memory it is, in errors.
    """

    name: str

    @abstractmethod
    def allocate(self, size: int) -> Buffer:
        """A buffer of at least `size` > 0 bytes, whose contents are anything.

        Raises:
            MemoryError: there is none. The resource is as it was.
        """

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Take back what `allocate` gave; nobody may use it any more."""

    def release(self) -> None:  # noqa: B027  # most hold nothing
        """Give what is held but not in use back to where it came from."""

    def largest_free(self) -> int:
        """Bytes of the largest stretch that is held but not in use."""
        return 0

    def room(self) -> int | None:
        """Bytes that are left to allocate, of what is not held unused; None if nobody knows."""
        return None

    def state(self) -> str:
        """What errors say about memory that is used by others; nothing where it is not known."""
        return ""


class Adaptor(Resource):
    """A resource that adds one thing to its upstream. By itself it adds nothing."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream
        self.name = upstream.name

    def allocate(self, size: int) -> Buffer:
        """What the upstream gives."""
        return self.upstream.allocate(size)

    def free(self, buffer: Buffer) -> None:
        """Hand the buffer on to the upstream."""
        self.upstream.free(buffer)

    def release(self) -> None:
        """Let the upstream release too."""
        self.upstream.release()

    def largest_free(self) -> int:
        """The largest stretch of the upstream."""
        return self.upstream.largest_free()

    def room(self) -> int | None:
        """The room of the upstream."""
        return self.upstream.room()

    def state(self) -> str:
        """The state of the upstream."""
        return self.upstream.state()


class Limit(Adaptor):
    """Allocates at most so many bytes of the upstream at once.

    Args:
        upstream:    where buffers come from.
        limit_bytes: the most; None is no limit.

    Attributes:
        allocated_bytes: what is allocated of the upstream now.
    """

    def __init__(self, upstream: Resource, limit_bytes: int | None) -> None:
        super().__init__(upstream)
        self.limit_bytes = limit_bytes
        self.allocated_bytes = 0

    def allocate(self, size: int) -> Buffer:
        """What the upstream gives.

        Raises:
            MemoryError: it would be more than the limit.
        """
        if self.limit_bytes is not None and self.allocated_bytes + size > self.limit_bytes:
            raise MemoryError(f"{size} bytes more than {self.allocated_bytes} pass the limit")
        buffer = self.upstream.allocate(size)
        self.allocated_bytes += buffer.size
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Hand the buffer on to the upstream."""
        self.allocated_bytes -= buffer.size
        self.upstream.free(buffer)

    def room(self) -> int | None:
        """The bytes that are left below the limit, or in the upstream where these are fewer."""
        known = [self.upstream.room()]
        if self.limit_bytes is not None:
            known.append(max(0, self.limit_bytes - self.allocated_bytes))
        return min([room for room in known if room is not None], default=None)


class Retry(Adaptor):
    """Where memory is out, it has all that is unused given back and tries once more."""

    def allocate(self, size: int) -> Buffer:
        """What the upstream gives, at the first or the second try.

        Raises:
            MemoryError: even then there is none.
        """
        try:
            return self.upstream.allocate(size)
        except MemoryError:
            self.upstream.release()
        return self.upstream.allocate(size)


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
