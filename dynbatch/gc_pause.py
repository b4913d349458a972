"""Runs Python's cyclic garbage collector more rarely while a graph is open.

A mini-batch makes thousands of nodes that all live until the graph closes, and none of them is part
of a cycle. The collector looks through them again and again, after every 700 new objects: measured,
a fifth of the time that a graph of trees takes to build.
"""

from __future__ import annotations

import gc
import threading

from dynbatch.arguments import size
from dynbatch.recent import free_at_fork

_lock = free_at_fork(threading.Lock())
_objects: int | None = 100_000
_open = 0
_before: tuple[int, int, int] | None = None


def set_gc_threshold(objects: int | None) -> None:
    """How many new objects start a garbage collection while a graph is open.

    The threshold holds inside a `with db.Graph()` block; afterwards the collector is as it was. A
    collector that is disabled, or has a higher threshold, is left alone.

    Args:
        objects: a number of objects, by default 100,000; None leaves the collector alone.

    Raises:
        ArgumentError: it is neither an integer of 1 or more nor None.
    """
    global _objects
    _objects = None if objects is None else size("set_gc_threshold", "objects", objects)


def enter() -> None:
    """Raise the threshold when the first graph opens."""
    global _open, _before
    with _lock:
        _open += 1
        threshold = gc.get_threshold()
        if _open == 1 and _objects is not None and 0 < threshold[0] < _objects:
            _before = threshold
            gc.set_threshold(_objects, *threshold[1:])


def leave() -> None:
    """A graph closes; with the last one the collector is as it was."""
    global _open, _before
    with _lock:
        _open -= 1
        if not _open and _before is not None:
            gc.set_threshold(*_before)
            _before = None
