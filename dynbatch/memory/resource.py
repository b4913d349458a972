"""What every source of memory is: `allocate` gives a buffer, `free` takes it back.

A resource that keeps or counts something does it over another, its upstream, and knows no more of
it than this: `Statistics(Arena(Limit(HostMemory(), 1 << 30)))`.

Source: the interface and its composition are those of RMM's `rmm::mr` (rapidsai/rmm,
cpp/include/rmm/mr).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from dynbatch.parameter import Array

ALIGNMENT_BYTES = 64
"""Every buffer of the host begins at a multiple of it."""

GRAIN_BYTES = 256
"""Suballocators hand out multiples of it, which keeps what CUDA's driver aligns aligned."""


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


def rounded(size: int, multiple: int = GRAIN_BYTES) -> int:
    """`size` rounded up to a multiple; at least one of it."""
    return max(1, -(-size // multiple)) * multiple
