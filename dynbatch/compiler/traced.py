"""`Traced`: what a cell was traced to, kept for as long as its parameters hold what was read."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path as FilePath
from types import MethodType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dynbatch.nodes.arguments import check_parameter
from dynbatch.nodes.node import Owner
from dynbatch.parameter import Parameter
from dynbatch.recent import free_at_fork


class Way(StrEnum):
    """The ways to read a part of a value."""

    ATTRIBUTE = "attribute"
    ITEM = "item"
    TYPE = "type"
    LENGTH = "length"
    KEYS = "keys"
    NAMES = "names"


Path = tuple[tuple[Way, object], ...]
"""The path to a value: ((ATTRIBUTE, "gates"), (ITEM, 0)) is params.gates[0]."""

Reads = dict[Path, object]
"""The values that were read, by path."""

COMPARED = (int, float, str, bool, bytes, tuple, frozenset, MethodType, np.ndarray)


class Missing:
    """Stands for a value that does not exist."""


def is_unchanged(params: object, reads: Reads) -> bool:
    """Whether reading `params` again would give the same values."""
    # The first that differs is the last looked at: another model's trace costs one read, not all.
    pairs = zip(_values(params, reads), reads.values(), strict=True)
    return all(now is then or _is_same(now, then) for now, then in pairs)


def check_reads(what: str, reads: Reads, graph: Owner, short: bool = False) -> None:
    """Raise an error unless parameters that were read are of the graph's dtype, on its device.

    Args:
        short: whether what was traced reads those in 16 bits, too.
    """
    for value in reads.values():
        if isinstance(value, Parameter):
            check_parameter(what, value, graph, short)


def read(params: Any, way: Way, key: Any) -> Any:
    """The result of reading a value in some way."""
    if way is Way.ATTRIBUTE:
        return getattr(params, key)
    if way is Way.ITEM:
        return params[key]
    if way is Way.TYPE:
        return params.__class__  # that of what a `Recorder` stands for
    if way is Way.LENGTH:
        return len(params)
    return tuple(params if way is Way.KEYS else vars(params))


def _values(params: object, paths: Iterable[Path]) -> Iterator[object]:
    """The values at these paths, `Missing` where there is none.

    What a path has in common with the one before it is read once: `params.layers[3].norm` for the
    weight and the bias.
    """
    before: Path = ()
    passed = [params]  # at the beginnings of the path before
    for path in paths:
        common, most = 0, min(len(path), len(before), len(passed) - 1)
        while common < most and path[common] == before[common]:
            common += 1
        del passed[common + 1 :]
        try:
            for way, key in path[common:]:
                passed.append(read(passed[-1], way, key))
        except (AttributeError, KeyError, IndexError, TypeError):
            pass
        before = path
        yield passed[-1] if len(passed) == len(path) + 1 else Missing


def _is_same(now: object, then: object) -> bool:
    if now is then:
        return True
    if isinstance(then, frozenset) and isinstance(now, set):
        return now == then
    return isinstance(then, COMPARED) and same(now, then)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; arrays by their bytes."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b) or isinstance(a, np.ndarray):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all([same(x, y) for x, y in zip(a, b, strict=True)])
    if isinstance(a, dict):
        return list(a) == list(b) and all([same(a[name], b[name]) for name in a])
    return bool(a == b)


class MadeOfReads(Protocol):
    """A trace, or what was compiled from one."""

    @property
    def reads(self) -> Reads:
        """Everything that the trace read from its parameters."""


class _FirstTraced(threading.local):
    """The functions that a thread has traced for the first time, until somebody takes them."""

    def __init__(self) -> None:
        self.first: set[str] = set()


_of_thread = _FirstTraced()


def take_first_traced() -> frozenset[str]:
    """The cells and blocks that this thread traced for the first time since it was last asked.

    By the function's name and line, so that those of one definition that was run again are equal.
    """
    first = _of_thread.first
    if not first:
        return frozenset()
    _of_thread.first = set()
    return frozenset(first)


T = TypeVar("T", bound=MadeOfReads)
Key = tuple[object, ...]

Entry = tuple[Key, T]

_lock = free_at_fork(threading.Lock())  # held while one tuple takes the place of another


class Traced(Generic[T]):
    """Traces of one cell by key, of which each fits the parameters that hold what it has read.

    Several threads may use one cell at once. What is kept is a tuple that nobody changes: whoever
    looks goes through the one that was there when the look began, and whoever adds puts another in
    its place.

    Args:
        size:     how many are kept, those used last.
        function: of the cell or block.
    """

    def __init__(self, size: int, function: Callable[..., Any]) -> None:
        self._size = size
        self._function = function
        self._kept: tuple[Entry[T], ...] = ()  # the last used at the end

    def find(self, key: Key, params: object) -> T | None:
        """The trace that fits, which is then the last used; None if there is none."""
        entry = _fitting(self._kept, key, params)
        if entry is None:
            return None
        if entry is not self._kept[-1]:
            with _lock:
                self._kept = (*[one for one in self._kept if one is not entry], entry)[
                    -self._size :
                ]
        return entry[1]

    def fitting(self, begin: Key, params: object) -> list[T]:
        """The traces that fit whose key begins so, the last used at the end."""
        return [
            made
            for key, made in self._kept
            if key[: len(begin)] == begin and is_unchanged(params, made.reads)
        ]

    def add(self, key: Key, params: object, made: T) -> T:
        """Keep a trace; returns the one to use, since another thread may have been first."""
        while True:
            seen = self._kept
            entry = _fitting(seen, key, params)
            if entry is not None:
                return entry[1]
            with _lock:
                if self._kept is seen:
                    self._kept = (*seen, (key, made))[-self._size :]
                    if not seen:
                        _of_thread.first.add(_definition(self._function))
                    return made

    def all(self) -> list[T]:
        """All entries, the last used at the end."""
        return [made for _, made in self._kept]


def _definition(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__).strip("<>")
    return (
        name
        if code is None
        else f"{name} ({FilePath(code.co_filename).name}:{code.co_firstlineno})"
    )


def _fitting(kept: tuple[Entry[T], ...], key: Key, params: object) -> Entry[T] | None:
    for entry in kept:  # a network's cells take turns: the next is the one not used for longest
        if entry[0] == key and is_unchanged(params, entry[1].reads):
            return entry
    return None
