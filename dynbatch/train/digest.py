"""Digests: short texts that reveal a change of tensors or data.

BLAKE2b of 128 bits throughout. It reads its bytes where they lie, without a copy, at the order of a
gigabyte a second on one core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b

import numpy as np

from dynbatch.backend import Array

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
    digest = blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=_SIZE)
    digest.update(_bytes(array).data)
    return digest.hexdigest()


def data_digest(data: object) -> str:
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
    digest = blake2b(digest_size=_SIZE)
    pending = bytearray()
    being_read: set[int] = set()  # a tree whose nodes know their head is a circle
    to_read: list[object] = [data]
    while to_read:
        value = to_read.pop()
        if isinstance(value, _Read):
            being_read.discard(value.which)
            continue
        written, inside = _parts(value)
        if inside:
            if id(value) in being_read:
                written, inside = b"^", ()
            else:
                being_read.add(id(value))
                to_read.append(_Read(id(value)))
                to_read.extend(reversed(inside))
        pending += written
        if len(pending) > _PIECE:
            digest.update(pending)
            pending.clear()
    digest.update(pending)
    return digest.hexdigest()


class _Read:
    """Marks the end of an object among the values to read."""

    __slots__ = ("which",)

    def __init__(self, which: int) -> None:
        self.which = which


def _parts(value: object) -> tuple[bytes, Sequence[object]]:
    """The bytes that are hashed for a value, and the values inside it."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return _tagged("objects", array.shape), array.ravel().tolist()
        return _tagged("array", (array.dtype.str, array.shape)) + _bytes(array).tobytes(), ()
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return _tagged("str", len(text)) + text, ()
    if isinstance(value, list | tuple):
        return _tagged("list", len(value)), value
    if value is None or isinstance(value, bool | int | float | complex):
        return _tagged("number", repr(value)), ()
    if isinstance(value, bytes | bytearray | memoryview):
        return _tagged("bytes", len(value)) + bytes(value), ()
    if isinstance(value, dict):
        return _tagged("dict", len(value)), [part for item in value.items() for part in item]
    if isinstance(value, set | frozenset):
        return _tagged("set", sorted([data_digest(item) for item in value])), ()
    if isinstance(value, os.PathLike):
        return _tagged("path", os.fspath(value)), ()
    if is_dataclass(value) and not isinstance(value, type):
        return _tagged("class", type(value).__name__), [
            getattr(value, name, None) for name in _field_names(type(value))
        ]
    return _tagged("object", type(value).__qualname__), ()


def _tagged(tag: str, content: object) -> bytes:
    return f"{tag} {content}\n".encode("utf-8", "surrogatepass")


@cache
def _field_names(dataclass_type: type) -> tuple[str, ...]:
    return tuple([field.name for field in fields(dataclass_type)])


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
