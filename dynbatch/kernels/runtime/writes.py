"""Tells who keeps the values of parameters in another form that these have been written to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from dynbatch.backend import Array
from dynbatch.recent import free_at_fork


class Watcher(Protocol):
    """Keeps something of parameters' values."""

    def notice(self, arrays: Sequence[Array]) -> None:
        """These arrays of the host have been written to, perhaps by another thread."""


_watchers: WeakSet[Watcher] = WeakSet()
_lock = free_at_fork(threading.Lock())


def watch(watcher: Watcher) -> None:
    """Tell a watcher, as long as it lives, of what optimizers, `assign` and checkpoints write.

    Nobody tells of what a program writes into `parameter.value` itself.
    """
    with _lock:
        _watchers.add(watcher)


def written(arrays: Sequence[Array]) -> None:
    """Tell all watchers of arrays that have been written to."""
    if _watchers:
        with _lock:
            watchers = list(_watchers)
        for watcher in watchers:
            watcher.notice(arrays)
