"""Signatures: integers; nodes with equal ones may share a kernel."""

from __future__ import annotations

import threading
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Reach:
    """The reach of a loss's gradient at a node: an entry of its own in a signature.

    results: of a block's call, the operators of the results that it reaches; of other nodes none.
    """

    results: tuple[int, ...] = ()


def with_reach(signature: int, reach: Reach) -> int:
    """The signature of nodes that the gradient does not reach as it reaches others."""
    return intern_signature((*key_of(signature), reach))


def reach_of(signature: int) -> Reach | None:
    """The entry that `with_reach` has added, if any."""
    last = key_of(signature)[-1]
    return last if isinstance(last, Reach) else None


def without_reach(signature: int) -> int:
    """The signature of a node by itself, whatever a loss reads."""
    return signature if reach_of(signature) is None else intern_signature(key_of(signature)[:-1])
