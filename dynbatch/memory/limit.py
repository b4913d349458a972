"""Resources that decide when an allocation fails: a limit, and a second try."""

from __future__ import annotations

from dynbatch.memory.resource import Adaptor, Buffer, Resource


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
