"""Allocation logs: `Logging` writes one, `read_log` reads it."""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TextIO

from dynbatch.errors import DataError
from dynbatch.memory.resource import Adaptor, Buffer, Resource

COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
ALLOCATE, FREE, FAILURE = "allocate", "free", "allocate failure"


class Event(NamedTuple):
    """One line of a log.

    Args:
        is_allocation: an allocation that succeeded; otherwise a free.
        address:       of the buffer, which links a free to its allocation. size:          requested
                       bytes.
    """

    is_allocation: bool
    address: int
    size: int


class Logging(Adaptor):
    """Writes a line for each allocation, free and failure.

    The columns are those of RMM's `logging_resource_adaptor`, so that its `REPLAY_BENCH` replays
    our logs, and `replay` RMM's: thread, time of day, action, address, bytes asked for, stream (0).

    Args:
        upstream: where buffers come from.
        file:     text, open for writing; the caller closes it.

    Example:
        >>> import io
        >>> from dynbatch.memory import Arena, Logging, Pool, read_log
        >>> file = io.StringIO()
        >>> pool = Pool(allocator=lambda upstream: Logging(Arena(upstream), file))
        >>> pool.give(pool.take(1000, "float32"))
        >>> [(event.is_allocation, event.size) for event in read_log(file.getvalue().splitlines())]
        [(True, 4000), (False, 4000)]
    """

    def __init__(self, upstream: Resource, file: TextIO) -> None:
        super().__init__(upstream)
        self._file = file
        self._requested: dict[int, int] = {}
        file.write(",".join(COLUMNS) + "\n")

    def allocate(self, size: int) -> Buffer:
        """A buffer of the upstream."""
        try:
            buffer = self.upstream.allocate(size)
        except MemoryError:
            self._write(FAILURE, 0, size)
            raise
        self._requested[buffer.address] = size
        self._write(ALLOCATE, buffer.address, size)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Hand the buffer on to the upstream."""
        self._write(FREE, buffer.address, self._requested.pop(buffer.address))
        self.upstream.free(buffer)

    def restore(self, in_use: Sequence[Buffer]) -> None:
        """Write down that all others are free."""
        for address in self._requested.keys() - {buffer.address for buffer in in_use}:
            self._write(FREE, address, self._requested[address])
            del self._requested[address]
        self.upstream.restore(in_use)

    def _write(self, action: str, address: int, size: int) -> None:
        time = datetime.now().strftime("%H:%M:%S.%f")
        self._file.write(f"{threading.get_ident()},{time},{action},{address:#x},{size},0\n")


def read_log(lines: Iterable[str]) -> list[Event]:
    """The allocations and frees of a log, in order; failures are left out.

    Args:
        lines: of the log, its header first: an open file, or a list.

    Raises:
        DataError: a line is not of a log; it is named.
    """
    rows = csv.reader(lines)
    if tuple(next(rows, ())) != COLUMNS:
        raise DataError(f"allocation log: line 1 is not {','.join(COLUMNS)!r}.")
    events = []
    for number, row in enumerate(rows, start=2):
        try:
            _, _, action, address, size, _ = row
            if action == FAILURE:
                continue
            if action not in (ALLOCATE, FREE):
                raise ValueError(action)
            events.append(Event(action == ALLOCATE, int(address, 0), int(size)))
        except ValueError as error:
            raise DataError(f"allocation log: line {number} is {','.join(row)!r}.") from error
    return events
