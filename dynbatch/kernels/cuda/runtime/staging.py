"""`Staging`: packs small host tables in pinned memory and uploads them in one copy."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.runtime.cupy_types import CupyModule

ALIGNMENT = 16
FIRST_BYTES = 1 << 16
# Buffers in turn: the host fills one while the device still reads the others.
DEPTH = 4


class Table(NamedTuple):
    """The place of a host array: `start` bytes from the beginning of an upload."""

    start: int
    upload: int


class Upload(NamedTuple):
    """Tables on the device, valid until the work queued with them has been started.

    number: of the upload, counted from 0.
    base:   address of the first table.
    copied: bytes.
    """

    number: int
    base: int
    copied: int

    def address(self, table: Table) -> int:
        """The address of a table.

        Raises:
            BackendError: the table belongs to another upload.
        """
        if table.upload != self.number:
            raise BackendError(
                f"a table of upload {table.upload} is read in upload {self.number}.\n"
                "  rule: a table lies on the device for one flush; a later launch stages it again"
            )
        return self.base + table.start


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

    A ring of `DEPTH` slots, each of which grows when a run needs more.

    Attributes:
        number: of the upload that will bring up what is put now.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._slots: list[Slot | None] = [None] * DEPTH
        self._turn = 0
        self.number = 0
        self._tables: list[Array] = []
        self._used = 0

    def __del__(self) -> None:
        """When a thread ends, keep its pinned memory from CuPy's pool while the device reads it."""
        for slot in self._slots:
            if slot is not None and slot.is_used and not sys.is_finalizing():
                slot.event.synchronize()

    def put(self, table: Array) -> Table:
        """Copy a table as it is now; return its place."""
        start = self._used
        self._tables.append(table)
        self._used = start + -(-table.nbytes // ALIGNMENT) * ALIGNMENT
        return Table(start, self.number)

    def upload(self) -> Upload:
        """Start the copy of all tables."""
        if not self._used:
            return Upload(self.number, 0, 0)
        slot = self._ready(self._used)
        start = 0
        for table in self._tables:
            slot.host[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
            start += -(-table.nbytes // ALIGNMENT) * ALIGNMENT
        copied = self._used
        slot.device.copy_from_host_async(
            slot.host.ctypes.data, copied, self._cupy.cuda.get_current_stream()
        )
        slot.is_used = True
        self._tables, self._used = [], 0
        return Upload(self.number, slot.device.ptr, copied)

    def done(self) -> None:
        """Note that all work that reads the last upload has been started."""
        slot = self._slots[self._turn]
        if slot is not None and slot.is_used:
            slot.event.record(self._cupy.cuda.get_current_stream())
            self._turn = (self._turn + 1) % DEPTH
        self.discard()

    def discard(self) -> None:
        """Drop tables that were not uploaded; earlier uploads are not read any more."""
        self._tables, self._used = [], 0
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
