"""Shared by threads: tables of recently used entries, and locks that a fork waits for.

A look-up of one key in a dictionary is one step of the interpreter, and needs no lock. Several
steps (look up, then enter) need one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def free_at_fork(lock: threading.Lock) -> threading.Lock:
    """Have every fork wait for the lock: in the child it is free, and what it guards is whole.

    It is for locks that live as long as the process.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock


class Recent(Generic[Key, Value]):
    """A thread-safe table of the most recently used entries.

    If two threads make the value of one key, both use the one entered first.

    Args:
        size: entries that are kept.

    Example:
        >>> squares = Recent(2)
        >>> [squares.enter(number, number**2) for number in (1, 2)]
        [1, 4]
        >>> squares.find(1), squares.enter(3, 9), squares.find(2)
        (1, 9, None)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._lock = free_at_fork(threading.Lock())

    def find(self, key: Key) -> Value | None:
        """The value of a key, or None."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def enter(self, key: Key, value: Value) -> Value:
        """Keep a value, unless another thread was first; the one that is kept."""
        with self._lock:
            kept = self._entries.setdefault(key, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:  # by one, or two after an interrupt
                self._entries.popitem(last=False)
            return kept

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
