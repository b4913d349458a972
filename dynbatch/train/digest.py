"""Digests: short texts that reveal a change of tensors or data.

BLAKE2b of 128 bits throughout. It reads its bytes where they lie, without a copy, at the order of a
gigabyte a second on one core.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.caller import users_frame
from dynbatch.data_set import LazySequence, has_places, indexed
from dynbatch.kernels.arrays import download
from dynbatch.kernels.runtime.dlpack import NOT_SHARED, view

_SIZE = 16
_PIECE = 1 << 16
"""Bytes that are gathered of many small values before they are hashed."""


_ARRAYS = ("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__")
"""The attributes by which an array of any library is known."""


def text_digest(text: str) -> str:
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

    What counts are numbers, texts, bytes, None, members of enumerations, paths, arrays and tensors
    of any library with their dtype and shape, and lists, tuples, dictionaries, sets and dataclasses
    of these; their order counts, that of a set does not. A data set is read once, example by
    example. Of any other object only its type counts, as nothing else of it is sure to be the same
    in the next process; a warning names such types.

    Example:
        >>> one = data_digest([("a", np.arange(3)), ("b", np.arange(2))])
        >>> one == data_digest([("a", np.arange(3)), ("b", np.arange(2))])
        True
        >>> one == data_digest([("b", np.arange(2)), ("a", np.arange(3))])
        False
    """
    unread: set[type] = set()
    digest = _digest(data, unread)
    if type(data) in unread and has_places(data):
        unread = set()
        digest = _digest(indexed("data_digest", "data", data), unread)
    if unread:
        names = ", ".join(sorted([each.__qualname__ for each in unread]))
        warnings.warn(
            f"data_digest: of {names} only the type counts, so that resume() takes any others for "
            "them.\n  fix: make examples of dataclasses, tuples, lists, dictionaries and arrays",
            stacklevel=users_frame()[1] + 1,
        )
    return digest


def _digest(data: object, unread: set[type]) -> str:
    """The digest of a value; types of which nothing else counts are added to `unread`."""
    digest = blake2b(digest_size=_SIZE)
    pending = bytearray()
    being_read: set[int] = set()  # a tree whose nodes know their head is a circle
    levels: list[tuple[object, Iterator[object]]] = [(None, iter([data]))]
    while levels:
        around, values = levels[-1]
        for value in values:
            tag, content, inside = _parts(value, unread)
            if inside and id(value) in being_read:
                tag, inside = b"^", ()
            pending += tag
            if len(pending) + len(content) > _PIECE:
                digest.update(pending)
                pending.clear()
                digest.update(content)
            else:
                pending += content
            if inside:
                being_read.add(id(value))
                levels.append((value, iter(inside)))
                break
        else:
            levels.pop()
            being_read.discard(id(around))
    digest.update(pending)
    return digest.hexdigest()


def _parts(value: Any, unread: set[type]) -> tuple[bytes, Any, Iterable[object]]:
    """The bytes that are hashed for a value, its content among them, and the values inside it."""
    if isinstance(value, np.generic):  # first: some are numbers and texts of Python, too
        return _parts_of_array(value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return _tagged("str", len(text)), text, ()
    if isinstance(value, list | tuple | range | deque | LazySequence):
        return _tagged("list", len(value)), b"", value
    if value is None or isinstance(value, bool | int | float | complex):
        return _tagged("number", repr(value)), b"", ()
    if isinstance(value, bytes | bytearray | memoryview):
        return _tagged("bytes", len(value)), value, ()
    if isinstance(value, Mapping):
        return _tagged("dict", len(value)), b"", [part for item in value.items() for part in item]
    if isinstance(value, set | frozenset):
        return _tagged("set", sorted([_digest(item, unread) for item in value])), b"", ()
    if isinstance(value, os.PathLike):
        return _tagged("path", os.fspath(value)), b"", ()
    if isinstance(value, Enum):
        return _tagged("member", (type(value).__name__, value.name)), b"", ()
    if is_dataclass(value) and not isinstance(value, type):
        fields_of = [getattr(value, name, None) for name in _field_names(type(value))]
        return _tagged("class", type(value).__name__), b"", fields_of
    if not isinstance(value, type) and any([hasattr(value, name) for name in _ARRAYS]):
        with suppress(AttributeError, *NOT_SHARED):
            return _parts_of_array(value)
    unread.add(type(value))
    return _tagged("object", type(value).__qualname__), b"", ()


def _parts_of_array(value: Any) -> tuple[bytes, Any, Iterable[object]]:
    try:
        shared = view("data_digest", value.detach() if hasattr(value, "detach") else value)
    except NOT_SHARED:  # NumPy has no bfloat16
        return _tagged("tensor", (str(value.dtype), tuple(value.shape))), b"", [value.tolist()]
    array = shared if isinstance(shared, np.ndarray | np.generic) else download(shared)
    array = np.asarray(array)
    if array.dtype.hasobject:
        if array.ndim == 0 and array.item() is value:
            raise TypeError("it is no array after all")
        return _tagged("objects", array.shape), b"", array.ravel().tolist()
    return _tagged("array", (array.dtype.str, array.shape)), _bytes(array).data, ()


def _tagged(tag: str, content: object) -> bytes:
    return f"{tag} {content}\n".encode("utf-8", "surrogatepass")


@cache
def _field_names(dataclass_type: type) -> tuple[str, ...]:
    return tuple([field.name for field in fields(dataclass_type)])


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
