"""`Staging`: packs small host tables in pinned memory and uploads them in one copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime.cupy_types import CupyModule

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
    """A pinned buffer, the device buffer of its size, and the event after their last use."""

    def __init__(self, cupy: CupyModule, size: int) -> None:
        pinned = cupy.cuda.alloc_pinned_memory(size)
        self.size = size
        self.host = np.frombuffer(pinned, np.uint8, size)
        self.pinned = pinned
        self.device = cupy.cuda.alloc(size)
        self.event = cupy.cuda.Event(disable_timing=True)
        self.is_used = False


class Staging:
    """Takes tables one by one; `upload` copies them all. It waits only for a buffer still in use.

    A table is copied as it is put, in the dtype in which the device reads it. Its place is the
    number of bytes before it.
    A ring of `DEPTH` slots, each of which grows when a run needs more.

    Attributes:
        number: of the upload that will bring up what is put now.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._slots: list[Slot | None] = [None] * DEPTH
        self._turn = 0
        self.number = 0
        self._used = 0
        self._parts: list[bytes] = []  # so many bytes
        self._places: dict[tuple[int, DType], tuple[int, Array]] = {}
        self._later: list[tuple[int, int, Fill]] = []

    def __del__(self) -> None:
        """When a thread ends, keep its pinned memory from CuPy's pool while the device reads it."""
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
        slot = self._ready(used)
        upload = Upload(self.number, slot.device.ptr, used)
        slot.host[:used] = np.frombuffer(b"".join(self._parts), np.uint8)
        for start, size, fill in self._later:
            fill(upload, slot.host[start : start + size])
        slot.device.copy_from_host_async(
            slot.host.ctypes.data, used, self._cupy.cuda.get_current_stream()
        )
        slot.is_used = True
        return upload

    def done(self) -> None:
        """Note that all work that reads the last upload has been started."""
        slot = self._slots[self._turn]
        if slot is not None and slot.is_used:
            slot.event.record(self._cupy.cuda.get_current_stream())
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
            slot = Slot(self._cupy, max(FIRST_BYTES, 1 << (size - 1).bit_length()))
            self._slots[self._turn] = slot
        slot.is_used = False
        return slot
