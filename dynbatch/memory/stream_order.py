"""`StreamOrder`: makes a stream wait before it reuses memory of another stream."""

from __future__ import annotations

from typing import NamedTuple

from dynbatch import backend
from dynbatch.cupy_types import CudaEvent, CudaStream, CupyModule
from dynbatch.memory.resource import Buffer

# Freed ranges above which those are forgotten that their streams have done with.
MANY = 32


class Freed(NamedTuple):
    """Memory from `first` up to `end` that was used on a stream until an event."""

    first: int
    end: int
    stream: int
    event: CudaEvent


class StreamOrder:
    """Makes a stream wait for the one that used a piece of memory before it.

    A graph gives its memory back as soon as its kernels are started. The next graph of the same
    stream comes after them by itself. One of another stream is told to wait, by an event, if it
    gets some of that memory, and only then. The host waits for nobody.
    """

    def __init__(self) -> None:
        self._freed: list[Freed] = []
        self._users: dict[
            int, tuple[CupyModule, CudaStream]
        ] = {}  # of what is on loan: CuPy and a stream

    def take(self, buffer: Buffer) -> None:
        """Make CuPy's current stream wait until it may use a buffer."""
        cupy = backend.cupy()
        stream = cupy.cuda.get_current_stream()
        first, end = buffer.address, buffer.address + buffer.size
        apart = []
        for freed in self._freed:
            if freed.end <= first or end <= freed.first:
                apart.append(freed)
                continue
            if freed.stream != stream.ptr:
                stream.wait_event(freed.event)
            if freed.first < first:
                apart.append(freed._replace(end=first))
            if end < freed.end:
                apart.append(freed._replace(first=end))
        self._users[first] = cupy, stream  # first: should an interrupt come in between, it waited
        self._freed = apart

    def give(self, buffer: Buffer) -> None:
        """Free a buffer for others, once its stream has done what was started on it."""
        user = self._users.get(buffer.address)
        if user is None:  # an interrupt came after all of this
            return
        cupy, stream = user
        try:
            event = cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        except cupy.cuda.runtime.CUDARuntimeError:
            return  # the device is lost: whoever uses the memory next is told so
        if len(self._freed) >= MANY:
            self._freed = [freed for freed in self._freed if not freed.event.done]
        end = buffer.address + buffer.size
        self._freed.append(Freed(buffer.address, end, stream.ptr, event))
        del self._users[buffer.address]
