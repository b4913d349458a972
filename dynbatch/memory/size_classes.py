"""`SizeClasses`: keeps freed buffers for later requests of about their size."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.memory.resource import Adaptor, Buffer, Resource

SMALLEST = 1024


class SizeClasses(Adaptor):
    """Keeps freed buffers by size; neither splits nor joins them.

    A request is rounded up to a size class. The smallest free buffer that holds it is taken if it
    is at most twice as large; otherwise the upstream gives a new one. With eight classes from one
    power of two to the next, a new buffer has at most 12.5 % to spare.

    Args:
        upstream:     where buffers come from.
        per_doubling: classes between two powers of two, itself a power of two.

    Source: segregated fits, Wilson et al. 1995, section 3.6; classes as in jemalloc (Evans 2006).
    """

    def __init__(self, upstream: Resource, per_doubling: int = 8) -> None:
        super().__init__(upstream)
        self._per_doubling = per_doubling
        self._free: dict[int, list[Buffer]] = {}

    def allocate(self, size: int) -> Buffer:
        """A free buffer, or a new one."""
        size = size_class(size, self._per_doubling)
        fitting = [held for held, free in self._free.items() if free and size <= held <= 2 * size]
        if fitting:
            return self._free[min(fitting)].pop()
        return self.upstream.allocate(size)

    def free(self, buffer: Buffer) -> None:
        """Keep the buffer for a later request."""
        self._free.setdefault(buffer.size, []).append(buffer)

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Keep what is kept; the upstream frees what neither is in use nor kept."""
        kept = [buffer for buffers in self._free.values() for buffer in buffers]
        self.upstream.restore([*in_use, *kept])

    def release(self) -> None:
        """Return all kept buffers to the upstream."""
        kept = [buffer for buffers in self._free.values() for buffer in buffers]
        self._free.clear()
        for buffer in kept:
            self.upstream.free(buffer)
        self.upstream.release()

    def largest_free(self) -> int:
        """The size of the largest kept buffer."""
        return max([size for size, free in self._free.items() if free], default=0)


def size_class(size: int, per_doubling: int = 8) -> int:
    """`size` in bytes rounded up to one of `per_doubling` classes between two powers of two."""
    if size <= SMALLEST:
        return SMALLEST
    step = 1 << (size - 1).bit_length() - per_doubling.bit_length()
    return -(-size // step) * step
