"""The times in which programs and kernels were compiled or loaded: once, and no batch's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

KEPT = 4096
"""The most recent times are kept."""

_times: deque[tuple[float, float]] = deque(maxlen=KEPT)  # in order of their ends
_local = threading.local()


@contextmanager
def compiling() -> Iterator[None]:
    """Count the time inside the block as spent on compiling, an inner block's only once."""
    if getattr(_local, "is_inside", False):
        yield
        return
    begin, _local.is_inside = time.perf_counter(), True
    try:
        yield
    finally:
        _local.is_inside = False
        _times.append((begin, time.perf_counter()))


def seconds_compiling(begin: float, end: float) -> float:
    """Seconds between two times, by perf_counter, in which some thread compiled."""
    parts: list[tuple[float, float]] = []
    # An index, not an iterator: another thread's append would end an iterator with an error, and
    # makes an index read a time twice, which counts once below.
    back = 1
    while back <= len(_times):
        first, last = _times[-back]
        if last <= begin:
            break
        parts.append((max(first, begin), min(last, end)))
        back += 1
    seconds = 0.0
    for first, last in sorted(parts):
        first = max(first, begin)
        if last > first:
            seconds += last - first
            begin = last  # what others compiled meanwhile is counted
    return seconds
