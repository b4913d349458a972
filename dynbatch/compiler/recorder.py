"""`Recorder`: notes what a cell reads from its parameters, so that a change can be seen later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from numbers import Number
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import numpy as np

from dynbatch.attributes import attributes_of
from dynbatch.errors import GraphError, MissingParameterError
from dynbatch.nodes.node import Node
from dynbatch.parameter import Array, Parameter

Path = tuple[tuple[str, Any], ...]
"""How a value is reached: (("attribute", "gates"), ("item", 0)) is params.gates[0]."""

COMPARED = (int, float, str, bool, bytes, tuple, frozenset, MethodType)
CONTAINERS = (list, tuple, dict)
# What is handed on as it is although it has attributes.
LEAVES = (Parameter, Node, Enum, Number, np.ndarray, os.PathLike, type)


class _Missing:
    """What was looked for in vain."""


def recorded(params: Any) -> tuple[Any, dict[Path, Any]]:
    """What a cell gets as its parameters while it is traced, and what it reads of them, by path.

    A single parameter, a number or None is handed on as it is; anything with attributes or items
    stands behind a `Recorder`.
    """
    if is_leaf(params):
        return params, {(): snapshot(params)}
    reads: dict[Path, Any] = {}
    return Recorder(params, (), reads), reads


class Recorder:
    """Stands in for `params` while a cell is traced.

    What it is asked for it hands on: parameters, numbers and functions as they are, and noted;
    modules, namespaces, lists and dicts inside recorders of their own. Methods run on the recorder,
    so that what they read is noted too: a sub-module's `training`, for instance.

    Raises:
        GraphError: the cell writes to its parameters, which would happen once and not every step.
        MissingParameterError: there is nothing of that name, key or index.
    """

    __slots__ = ("_params", "_path", "_reads")

    def __init__(self, params: Any, path: Path = (), reads: dict[Path, Any] | None = None) -> None:
        object.__setattr__(self, "_params", params)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_reads", {} if reads is None else reads)

    @property
    def __class__(self) -> Any:  # `super()` and `isinstance` in a module's methods ask for it
        return _noted(self, ("type", None))

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        _refuse("the class")

    def __getattr__(self, name: str) -> Any:
        if name == "__dict__":  # for `vars`
            return {key: getattr(self, key) for key in _noted(self, ("names", None))}
        return _noted(self, ("attribute", name))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return tuple([self[k] for k in range(*key.indices(len(self)))])
        return _noted(self, ("item", key))

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(name)

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse(repr(key))

    def __len__(self) -> int:
        length: int = _noted(self, ("length", None))
        return length

    def __bool__(self) -> bool:
        params = _own(self, "_params")
        return bool(len(self)) if hasattr(type(params), "__len__") else bool(params)

    def __eq__(self, other: object) -> bool:
        params = _own(self, "_params")
        if isinstance(params, CONTAINERS):
            return isinstance(other, CONTAINERS) and bool(_copy(self) == other)
        if type(other) is Recorder:
            other = _own(other, "_params")
        return bool(params == other)

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Any]:
        if isinstance(_own(self, "_params"), dict):
            return iter(_noted(self, ("keys", None)))
        return iter([self[k] for k in range(len(self))])

    def __contains__(self, key: Any) -> bool:
        return key in list(self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        params = _own(self, "_params")
        function = type(params).__call__
        if isinstance(function, FunctionType):
            return function(self, *arguments, **named)
        reads_of(self)[_own(self, "_path")] = params
        return params(*arguments, **named)


def reads_of(recorder: Recorder) -> dict[Path, Any]:
    """What has been read through it, by path."""
    reads: dict[Path, Any] = _own(recorder, "_reads")
    return reads


def is_unchanged(params: Any, reads: dict[Path, Any]) -> bool:
    """Whether reading `params` again would give what was read."""
    return all([_same(_follow(params, path), value) for path, value in reads.items()])


def is_leaf(value: Any) -> bool:
    """Whether a value is handed on as it is, rather than what it holds."""
    if isinstance(value, CONTAINERS):
        return False
    if isinstance(value, LEAVES) or hasattr(value, "__name__"):
        return True
    slots = any([kind.__dict__.get("__slots__") for kind in type(value).__mro__])
    return not (slots or hasattr(value, "__dict__"))


def snapshot(value: Any) -> Any:
    """What a later value is compared with: a copy of what can change in place."""
    if isinstance(value, set):
        return frozenset(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _own(recorder: Recorder, name: str) -> Any:
    return object.__getattribute__(recorder, name)


def _refuse(name: str) -> None:
    raise GraphError(
        f"a cell sets {name} of its parameters.\n"
        "  rule: a cell is traced once and computes; it changes nothing\n"
        "  fix:  return what changes as a part of the state"
    )


def _read(params: Any, way: str, key: Any) -> Any:
    if way == "type":
        return type(params)
    if way == "length":
        return len(params)
    if way == "keys":
        return tuple(params)
    if way == "names":
        return tuple(vars(params))
    return params[key] if way == "item" else getattr(params, key)


def _noted(recorder: Recorder, step: tuple[str, Any]) -> Any:
    params, reads = _own(recorder, "_params"), reads_of(recorder)
    path = (*_own(recorder, "_path"), step)
    try:
        value = _read(params, *step)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        is_special = isinstance(step[1], str) and step[1].startswith("__")
        if is_special or (isinstance(error, TypeError) and step[0] != "item"):
            raise
        reads[path] = _Missing
        raise MissingParameterError.at_caller(_missing(path, params)) from error
    if isinstance(value, MethodType) and value.__self__ is params:
        return MethodType(value.__func__, recorder)
    if isinstance(value, BuiltinMethodType) and isinstance(params, CONTAINERS):  # items, get, index
        return getattr(_copy(recorder), step[1])
    if not is_leaf(value):
        reads[*path, ("type", None)] = type(value)  # so that None in its place is a change
        return Recorder(value, path, reads)
    reads[path] = snapshot(value)
    return value


def _copy(recorder: Recorder) -> Any:
    """A list, tuple or dict of what is read from one."""
    params = _own(recorder, "_params")
    if isinstance(params, dict):
        return {key: recorder[key] for key in recorder}
    return list(recorder) if isinstance(params, list) else tuple(recorder)


def _missing(path: Path, params: Any) -> str:
    """The message of a `MissingParameterError`."""
    (way, key), owner = path[-1], _spelt(path[:-1])
    asked, there = _spelt(path), "items" if isinstance(params, list | tuple) else "names"
    if isinstance(params, dict):
        known, there = [repr(name) for name in params], "keys"
        fix = f"say {owner}[{key!r}]" if way == "attribute" and key in params else ""
    elif isinstance(params, list | tuple):
        known = [str(len(params))]
        fix = "count from 0" if way == "item" else f"say {owner}[0]"
    else:
        known = [name for name in attributes_of(params) if not name.startswith("_")]
        fix = f"say {owner}.{key}" if way == "item" and key in known else ""
    fix = fix or "give the parameters that name before the cell runs, or read one that is there"
    return (
        f"a cell reads {asked}, and there is none.\n"
        f"  rule: {owner} is a {type(params).__name__}; its {there}: "
        f"{', '.join(known[:12]) or 'none'}{', …' if len(known) > 12 else ''}\n"
        f"  fix:  {fix}"
    )


def _spelt(path: Path) -> str:
    """A path as a cell would spell it."""
    text = "p"
    for way, key in path:
        text += f".{key}" if way == "attribute" else f"[{key!r}]"
    return text


def _follow(params: Any, path: Path) -> Any:
    try:
        for step in path:
            params = _read(params, *step)
    except (AttributeError, KeyError, IndexError, TypeError):
        return _Missing
    return params


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if isinstance(then, np.ndarray):
        return isinstance(now, np.ndarray) and _bytes(now) == _bytes(then)
    if isinstance(then, frozenset) and isinstance(now, set):
        return now == then
    return isinstance(then, COMPARED) and type(now) is type(then) and bool(now == then)


def _bytes(array: Array) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()
