"""Replays a recorded log on an allocator, and measures waste and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dynbatch.memory.log import Event
from dynbatch.memory.resource import (
    Buffer,
    Limit,
    MemoryStatistics,
    Resource,
    Retry,
    Statistics,
    statistics_of,
)
from dynbatch.memory.upstream import HostMemory


@dataclass(frozen=True)
class Replay:
    """The result of one allocator on one log.

    Args:
        end:     its statistics after the last event.
        at_peak: those at the moment when most bytes were asked for: there `internal_bytes` and
                 `free_bytes` are what it took beyond them.
        seconds: of all events together, counting included.
        upstream_events: numbers of the events that allocated from the upstream, from 0 on.
    """

    end: MemoryStatistics
    at_peak: MemoryStatistics
    seconds: float
    upstream_events: tuple[int, ...]

    @property
    def overhead(self) -> float:
        """The most that was reserved, over the most that was asked for; 1.0 if nothing is wasted.

        Source: Johnstone & Wilson 1998, "The memory fragmentation problem: solved?", measure 4.
        """
        return self.end.peak_reserved_bytes / max(1, self.end.peak_requested_bytes)


def replay(
    events: Sequence[Event],
    allocator: Callable[[Resource], Resource],
    upstream: Resource | None = None,
    limit_bytes: int | None = None,
) -> Replay:
    """Run the events of a log on an allocator.

    Frees of buffers allocated before the log began are skipped. Buffers that the log never frees
    are freed at its end.

    Args:
        events:      of `read_log`.
        allocator:   makes one of an upstream: `Arena`, `Buddy`, `SizeClasses`, ...
        upstream:    by default `HostMemory()`.
        limit_bytes: the most to reserve.

    Raises:
        MemoryError: the limit, or the upstream, does not allow an event.
    """
    below = Statistics(Limit(upstream or HostMemory(), limit_bytes))
    above = Statistics(Retry(allocator(below)))
    alive: dict[int, Buffer] = {}
    at_peak = statistics_of(above, below)
    grown: list[int] = []
    seconds = 0.0
    for number, event in enumerate(events):
        before = below.allocations
        begin = time.perf_counter()
        if event.is_allocation:
            alive[event.address] = above.allocate(event.size)
        elif event.address in alive:
            above.free(alive.pop(event.address))
        seconds += time.perf_counter() - begin
        if above.requested_bytes > at_peak.requested_bytes:
            at_peak = statistics_of(above, below)
        if below.allocations > before:
            grown.append(number)
    result = Replay(statistics_of(above, below), at_peak, seconds, tuple(grown))
    for buffer in alive.values():
        above.free(buffer)
    above.release()
    return result
