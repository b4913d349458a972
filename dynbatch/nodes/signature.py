"""Signatures: integers; nodes with equal ones may share a kernel."""

from __future__ import annotations

import threading
from typing import Any

from dynbatch.recent import free_at_fork

Key = tuple[Any, ...]
"""The key of a signature: the node type, then the entries that `Operation.signature` names."""

_signatures: dict[Key, int] = {}
_keys: list[Key] = []
_interning = free_at_fork(threading.Lock())


def intern_signature(key: Key) -> int:
    """The integer that stands for `key` in this process."""
    known = _signatures.get(key)
    if known is not None:
        return known
    with _interning:  # another thread may have been first; the number is given out last
        known = _signatures.get(key)
        if known is None:
            known = len(_keys)
            _keys.append(key)
            _signatures[key] = known
    return known


def key_of(signature: int) -> Key:
    """The key of a signature."""
    return _keys[signature]
