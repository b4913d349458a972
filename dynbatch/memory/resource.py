"""The interface of memory sources: `allocate` returns a buffer, `free` takes it back.

A resource that caches or counts wraps another one, its upstream, through this interface alone:
`Statistics(Arena(Limit(HostMemory(), 1 << 30)))`. Here are those that keep nothing: a limit, a
second try, and counters, which above and below an allocator show the waste.

Source: the interface and its composition are those of RMM's `rmm::mr` (rapidsai/rmm,
cpp/include/rmm/mr).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array

ALIGNMENT_BYTES = 64
"""The alignment of host buffers, in bytes."""

GRAIN_BYTES = 256
"""Suballocators return multiples of it, which keeps the alignment of CUDA's driver."""


def rounded(size: int, multiple: int = GRAIN_BYTES) -> int:
    """`size` rounded up to a multiple, and at least one."""
    return max(1, -(-size // multiple)) * multiple


class Buffer(ABC):
    """A stretch of memory.

    Attributes:
        address: of its first byte, unique among buffers in use.
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
        """A one-dimensional array over the whole buffer."""


class Resource(ABC):
    """Gives buffers of raw bytes and takes them back. Not thread-safe by itself; `Pool` is.

    Attributes:
        name: the memory's name in errors.
    """

    name: str

    @abstractmethod
    def allocate(self, size: int) -> Buffer:
        """A buffer of at least `size` > 0 bytes, uninitialised.

        Raises:
            MemoryError: there is none. The resource is as it was.
        """

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Take back a buffer from `allocate`, which must not be used afterwards."""

    def restore(self, in_use: Sequence[Buffer]) -> None:  # noqa: B027  # most hold nothing
        """Have these buffers in use and no others, whatever change was broken off.

        An interrupt may come at any line of `allocate`, `free` and `release`. What they change is
        then made anew from what is in use, and that can be repeated. `Pool` calls it before it asks
        for anything else.

        Args:
            in_use: buffers that `allocate` returned, and that were not given to `free`.
        """

    def release(self) -> None:  # noqa: B027  # most hold nothing
        """Return memory that is held but not in use to its source."""

    def largest_free(self) -> int:
        """Bytes of the largest stretch held but not in use."""
        return 0

    def room(self) -> int | None:
        """Bytes left to allocate, without held unused ones; None if unknown."""
        return None

    def state(self) -> str:
        """Text for errors about memory in use by others; "" if unknown."""
        return ""


class Adaptor(Resource):
    """Base of resources that wrap an upstream; itself it only forwards."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream
        self.name = upstream.name

    def allocate(self, size: int) -> Buffer:
        """Allocate from the upstream."""
        return self.upstream.allocate(size)

    def free(self, buffer: Buffer) -> None:
        """Hand the buffer on to the upstream."""
        self.upstream.free(buffer)

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Have the upstream restored."""
        self.upstream.restore(in_use)

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
    """Limits the bytes allocated from the upstream at once.

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
        """Allocate from the upstream.

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

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Count what is allocated anew."""
        self.allocated_bytes = sum([buffer.size for buffer in in_use])
        self.upstream.restore(in_use)

    def room(self) -> int | None:
        """The bytes left below the limit or in the upstream, whichever is less."""
        known = [self.upstream.room()]
        if self.limit_bytes is not None:
            known.append(max(0, self.limit_bytes - self.allocated_bytes))
        return min([room for room in known if room is not None], default=None)


class Retry(Adaptor):
    """A resource that has unused memory returned and tries again when memory runs out."""

    def allocate(self, size: int) -> Buffer:
        """A buffer of the upstream, at the first or the second try.

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
        """Allocate from the upstream."""
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

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Count what is in use anew; the others were given back."""
        known = self._requested
        self._requested = {each.address: known.get(each.address, each.size) for each in in_use}
        self.requested_bytes = sum(self._requested.values())
        self.rounded_bytes = sum([buffer.size for buffer in in_use])
        self.frees = self.allocations - len(in_use)
        self.upstream.restore(in_use)


@dataclass(frozen=True)
class MemoryStatistics:
    """Memory and calls of an allocator between two `Statistics`. Sizes in bytes.

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
        """Internal fragmentation: bytes of buffers in use beyond the requested ones."""
        return self.rounded_bytes - self.requested_bytes

    @property
    def free_bytes(self) -> int:
        """External fragmentation: bytes held but not in use."""
        return self.reserved_bytes - self.rounded_bytes

    @property
    def scattered_bytes(self) -> int:
        """Free bytes outside the largest stretch, which no single request can get."""
        return self.free_bytes - self.largest_free_bytes


def statistics_of(above: Statistics, below: Statistics) -> MemoryStatistics:
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
