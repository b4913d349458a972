"""`Staging`: packs small host tables in pinned memory and uploads them in one copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cupy_types import (
    CudaEvent,
    CudaStream,
    CupyModule,
    MemoryPointer,
)
from dynbatch.errors import BackendError

ALIGNMENT = 16
GAP = bytes(ALIGNMENT)
FIRST_BYTES = 1 << 16
# Buffers in turn: the host fills one while the device still reads the others.
DEPTH = 4


class Upload(NamedTuple):
    """Tables on the device, valid until the work queued with them has been started.

    number: of the upload, counted from 0.
    base:   address of the first table.
    copied: bytes.
    """

    number: int
    base: int
    copied: int

    def require(self, number: int) -> None:
        """Raise BackendError where tables belong to another upload."""
        if number != self.number:
            raise BackendError(
                f"a table of upload {number} is read in upload {self.number}.\n"
                "  rule: a table lies on the device for one flush; a later launch stages it again"
            )


Fill = Callable[[Upload, Array], None]
"""Writes a table into its room, an array of bytes, where its numbers depend on the upload."""


class Slot:
    """A pinned buffer, and the event after the last use of what was brought up from it."""

    def __init__(self, cupy: CupyModule, size: int) -> None:
        pinned = cupy.cuda.alloc_pinned_memory(size)
        self.size = size
        self.host = np.frombuffer(pinned, np.uint8, size)
        self.pinned = pinned
        self.event = cupy.cuda.Event(disable_timing=True)
        self.is_used = False


class Staging:
    """Takes tables one by one; `upload` copies them all. It waits only for a buffer still in use.

    A table is copied as it is put, in the dtype in which the device reads it. Its place is the
    number of bytes before it.
    On the host there is a ring of `DEPTH` slots, each of which grows when a run needs more. On the
    device there is one buffer, since a copy to it waits for what a stream reads of the one before:
    so what lies at the same place in two uploads has the same address, unless the buffer has grown.

    Attributes:
        number: of the upload that will bring up what is put now.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._slots: list[Slot | None] = [None] * DEPTH
        self._room: tuple[MemoryPointer, int] | None = None  # on the device, and its bytes
        self._last: tuple[CudaEvent, int] | None = None  # after the last use, and on which stream
        self._turn = 0
        self.number = 0
        self._used = 0
        self._parts: list[bytes] = []  # so many bytes
        self._places: dict[tuple[int, DType], tuple[int, Array]] = {}
        self._later: list[tuple[int, int, Fill]] = []

    def __del__(self) -> None:
        """Keep a dead thread's pinned memory from CuPy's pool while the device reads it."""
        for slot in self._slots:
            if slot is not None and slot.is_used and not sys.is_finalizing():
                slot.event.synchronize()

    def put(self, array: Array, dtype: DType) -> int:
        """Copy a host array as it is now, in a dtype; return its place: bytes from the start.

        One array has one place in an upload. It is known by its `id`, which no other array can have
        meanwhile, as it is kept; so what is written to it later does not come up.
        """
        known = self._places.get((id(array), dtype))
        if known is not None:
            return known[0]
        data = (array if array.dtype is dtype else array.astype(dtype)).tobytes()
        start, gap = self._used, -len(data) % ALIGNMENT
        self._parts.append(data)
        if gap:
            self._parts.append(GAP[:gap])
        self._used = start + len(data) + gap
        self._places[id(array), dtype] = start, array
        return start

    def put_later(self, size: int, fill: Fill) -> int:
        """Keep zeros for a table that holds addresses of others; return its place.

        `fill` writes it when the upload, and so their addresses, are known.
        """
        room = np.zeros(size, np.uint8)
        start = self.put(room, room.dtype)
        self._later.append((start, size, fill))
        return start

    def upload(self) -> Upload:
        """Start the copy of all tables."""
        used = self._used
        if not used:
            return Upload(self.number, 0, 0)
        stream = self._cupy.cuda.get_current_stream()
        slot, room = self._ready(used), self._room_for(used, stream)
        upload = Upload(self.number, room.ptr, used)
        slot.host[:used] = np.frombuffer(b"".join(self._parts), np.uint8)
        for start, size, fill in self._later:
            fill(upload, slot.host[start : start + size])
        room.copy_from_host_async(slot.host.ctypes.data, used, stream)
        slot.is_used = True
        return upload

    def done(self) -> None:
        """Note that all work that reads the last upload has been started."""
        slot = self._slots[self._turn]
        if slot is not None and slot.is_used:
            stream = self._cupy.cuda.get_current_stream()
            slot.event.record(stream)
            self._last = slot.event, stream.ptr
            self._turn = (self._turn + 1) % DEPTH
        self.discard()

    def discard(self) -> None:
        """Drop tables that were not uploaded; earlier uploads are not read any more."""
        self._used = 0
        self._parts.clear()
        self._places.clear()
        self._later.clear()
        self.number += 1

    def _ready(self, size: int) -> Slot:
        """The next slot, large enough and no longer in use."""
        slot = self._slots[self._turn]
        if slot is not None and slot.is_used:
            slot.event.synchronize()
        if slot is None or slot.size < size:
            slot = self._slots[self._turn] = Slot(self._cupy, _rounded(size))
        slot.is_used = False
        return slot

    def _room_for(self, size: int, stream: CudaStream) -> MemoryPointer:
        """The device's buffer, once what read it before is done: that was started on a stream."""
        room, last = self._room, self._last
        if room is None or room[1] < size:
            if last is not None:
                last[0].synchronize()  # CuPy's pool gives the old one to others at once
            rounded = _rounded(size)
            room = self._room = self._cupy.cuda.alloc(rounded), rounded
        elif last is not None and last[1] != stream.ptr:
            stream.wait_event(last[0])
        return room[0]


def _rounded(size: int) -> int:
    return max(FIRST_BYTES, 1 << (size - 1).bit_length())
