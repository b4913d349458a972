"""Digests: short texts that tell whether tensors, or data, are what they were.

BLAKE2b of 128 bits throughout. It reads its bytes where they lie, without a copy, at the order of a
gigabyte a second on one core.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np

from dynbatch.parameter import Array

_SIZE = 16
_PIECE = 1 << 20
"""Bytes that are gathered of many small values before they are hashed."""


def text_digest(text: str) -> str:
    """The digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).hexdigest()


def array_digest(array: Array) -> str:
    """The digest of an array's dtype, shape and bytes.

    Args:
        array: of numbers or truth values, C-contiguous or not (then it is copied).
    """
    found = blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=_SIZE)
    found.update(_bytes(array).data)
    return found.hexdigest()


def data_digest(data: Any) -> str:
    """The digest of examples: equal for equal data, on every machine and in every process.

    What counts are numbers, texts, bytes, None, paths, NumPy arrays with their dtype and shape, and
    lists, tuples, dictionaries, sets and dataclasses of these; their order counts, that of a set
    does not. Of any other object only its type counts, as nothing else of it is sure to be the same
    in the next process.

    Example:
        >>> one = data_digest([("a", np.arange(3)), ("b", np.arange(2))])
        >>> one == data_digest([("a", np.arange(3)), ("b", np.arange(2))])
        True
        >>> one == data_digest([("b", np.arange(2)), ("a", np.arange(3))])
        False
    """
    found = blake2b(digest_size=_SIZE)
    pending = bytearray()
    open_: set[int] = set()  # what is being read: a tree whose nodes know their head is a circle
    waiting: list[Any] = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _Read):
            open_.discard(one.which)
            continue
        written, inside = _parts(one)
        if inside:
            if id(one) in open_:
                written, inside = b"^", ()
            else:
                open_.add(id(one))
                waiting.append(_Read(id(one)))
                waiting.extend(reversed(inside))
        pending += written
        if len(pending) > _PIECE:
            found.update(pending)
            pending.clear()
    found.update(pending)
    return found.hexdigest()


class _Read:
    """All of an object has been read, when this is what comes next."""

    __slots__ = ("which",)

    def __init__(self, which: int) -> None:
        self.which = which


def _parts(one: Any) -> tuple[bytes, Any]:
    """What stands for a value in the hashed bytes, and the values inside it."""
    if isinstance(one, np.ndarray | np.generic):
        array = np.asarray(one)
        if array.dtype.hasobject:
            return _tagged("objects", array.shape), array.ravel().tolist()
        return _tagged("array", (array.dtype.str, array.shape)) + _bytes(array).tobytes(), ()
    if isinstance(one, str):
        text = one.encode("utf-8", "surrogatepass")
        return _tagged("str", len(text)) + text, ()
    if isinstance(one, list | tuple):
        return _tagged("list", len(one)), one
    if one is None or isinstance(one, bool | int | float | complex):
        return _tagged("number", repr(one)), ()
    if isinstance(one, bytes | bytearray | memoryview):
        return _tagged("bytes", len(one)) + bytes(one), ()
    if isinstance(one, dict):
        return _tagged("dict", len(one)), [part for item in one.items() for part in item]
    if isinstance(one, set | frozenset):
        return _tagged("set", sorted([data_digest(item) for item in one])), ()
    if isinstance(one, os.PathLike):
        return _tagged("path", os.fspath(one)), ()
    if is_dataclass(one) and not isinstance(one, type):
        return _tagged("class", type(one).__name__), [
            getattr(one, name, None) for name in _field_names(type(one))
        ]
    return _tagged("object", type(one).__qualname__), ()


def _tagged(kind: str, what: object) -> bytes:
    return f"{kind} {what}\n".encode("utf-8", "surrogatepass")


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple([field.name for field in fields(kind)])


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
