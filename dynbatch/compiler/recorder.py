"""`Recorder`: records what a cell reads from its parameters, to detect later changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from numbers import Number
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import numpy as np

from dynbatch.attributes import attributes_of
from dynbatch.compiler.traced import Missing, Path, Reads, Way, read
from dynbatch.errors import GraphError, MissingParameterError
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter

CONTAINERS = (list, tuple, dict)
# What is handed on as it is although it has attributes.
LEAVES = (Parameter, Node, Enum, Number, np.ndarray, os.PathLike, type)


def recorded(params: object) -> tuple[object, Reads]:
    """The parameters that a cell gets while it is traced, and the record of its reads.

    A single parameter, a number or None is handed on as it is; anything with attributes or items
    stands behind a `Recorder`.
    """
    if type(params) is Recorder:  # a cell inside a block
        inner = ReadsInside(params)
        return Recorder(_params_of(params), (), inner), inner
    if is_leaf(params):
        return params, {(): snapshot(params)}
    reads: Reads = {}
    return Recorder(params, (), reads), reads


class ReadsInside(dict[Path, object]):
    """The reads of a cell whose parameters are a part of what a block is given.

    The block has read them too.
    """

    def __init__(self, params: Recorder) -> None:
        super().__init__()
        self._of_block, self._path = reads_of(params), _path_of(params)

    def __setitem__(self, path: Path, value: object) -> None:
        super().__setitem__(path, value)
        self._of_block[*self._path, *path] = value


class Recorder:
    """Stands in for `params` while a cell is traced.

    It returns parameters, numbers and functions as they are and notes them; modules, namespaces,
    lists and dicts come inside recorders of their own. Methods run on the recorder,
    so that what they read is noted too: a sub-module's `training`, for instance.

    Raises:
        GraphError: the cell writes to its parameters, which would happen once and not every step.
        MissingParameterError: there is nothing of that name, key or index.
    """

    __slots__ = ("_params", "_path", "_reads")

    def __init__(self, params: object, path: Path = (), reads: Reads | None = None) -> None:
        object.__setattr__(self, "_params", params)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_reads", {} if reads is None else reads)

    @property
    def __class__(self) -> Any:  # `super()` and `isinstance` in a module's methods ask for it
        return _note(self, Way.TYPE)

    @__class__.setter
    def __class__(self, kind: object) -> None:
        _refuse("the class")

    def __getattr__(self, name: str) -> Any:
        if name == "__dict__":  # for `vars`
            return {key: getattr(self, key) for key in _note(self, Way.NAMES)}
        return _note(self, Way.ATTRIBUTE, name)

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, slice):
            return tuple([self[k] for k in range(*key.indices(len(self)))])
        return _note(self, Way.ITEM, key)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(name)

    def __setitem__(self, key: object, value: object) -> None:
        _refuse(repr(key))

    def __len__(self) -> int:
        length: int = _note(self, Way.LENGTH)
        return length

    def __bool__(self) -> bool:
        params = _params_of(self)
        return bool(len(self)) if hasattr(type(params), "__len__") else bool(params)

    def __eq__(self, other: object) -> bool:
        params = _params_of(self)
        if isinstance(params, CONTAINERS):
            return isinstance(other, CONTAINERS) and bool(_copy(self) == other)
        if type(other) is Recorder:
            other = _params_of(other)
        return bool(params == other)

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[object]:
        if isinstance(_params_of(self), dict):
            return iter(_note(self, Way.KEYS))
        return iter([self[k] for k in range(len(self))])

    def __contains__(self, key: object) -> bool:
        return key in list(self)

    def __call__(self, *arguments: object, **named: object) -> object:
        params = _params_of(self)
        function = type(params).__call__
        if isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):  # of a block
            return function(self, *arguments, **named)
        reads_of(self)[_path_of(self)] = params
        return params(*arguments, **named)


def reads_of(recorder: Recorder) -> Reads:
    reads: Reads = object.__getattribute__(recorder, "_reads")
    return reads


def is_leaf(value: object) -> bool:
    """Whether a value is returned as it is, not inside a recorder."""
    if isinstance(value, CONTAINERS):
        return False
    if isinstance(value, LEAVES) or hasattr(value, "__name__") or _is_constant(value):
        return True
    slots = any([base.__dict__.get("__slots__") for base in type(value).__mro__])
    return not (slots or hasattr(value, "__dict__"))


def _is_constant(value: object) -> bool:
    """Whether a value is plain, or a frozen dataclass or tuple of such: equal for good."""
    if isinstance(value, tuple):
        return all([_is_constant(item) for item in value])
    if not is_dataclass(value):
        return value is None or isinstance(value, str | Enum | Number)
    kind = type(value)
    if kind.__hash__ is None or not getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
        return False
    return all([_is_constant(getattr(value, field.name)) for field in fields(value)])


def snapshot(value: object) -> object:
    """A value for later comparison: a copy if it can change in place."""
    if isinstance(value, set):
        return frozenset(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _params_of(recorder: Recorder) -> Any:
    return object.__getattribute__(recorder, "_params")


def _path_of(recorder: Recorder) -> Path:
    path: Path = object.__getattribute__(recorder, "_path")
    return path


def _refuse(name: str) -> None:
    raise GraphError(
        f"a cell sets {name} of its parameters.\n"
        "  rule: a cell is traced once; it computes and changes nothing\n"
        "  fix:  return what changes as a part of the state"
    )


def _note(recorder: Recorder, way: Way, key: object = None) -> Any:
    params, reads = _params_of(recorder), reads_of(recorder)
    path = (*_path_of(recorder), (way, key))
    try:
        value = read(params, way, key)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        is_special = isinstance(key, str) and key.startswith("__")
        if is_special or (isinstance(error, TypeError) and way is not Way.ITEM):
            raise
        reads[path] = Missing
        if isinstance(error, MissingParameterError):  # it knows why
            raise
        raise MissingParameterError.at_caller(_missing(path, params)) from error
    if isinstance(value, MethodType) and value.__self__ is params:
        return MethodType(value.__func__, recorder)
    if isinstance(value, BuiltinMethodType) and isinstance(params, CONTAINERS):  # items, get, index
        return getattr(_copy(recorder), str(key))
    if not is_leaf(value):
        reads[*path, (Way.TYPE, None)] = type(value)  # so that None in its place is a change
        return Recorder(value, path, reads)
    reads[path] = snapshot(value)
    return value


def _copy(recorder: Recorder) -> object:
    """A copy of a recorder's list, tuple or dict, with its items read."""
    params = _params_of(recorder)
    if isinstance(params, dict):
        return {key: recorder[key] for key in recorder}
    return list(recorder) if isinstance(params, list) else tuple(recorder)


def _missing(path: Path, params: object) -> str:
    """The message of a `MissingParameterError`."""
    (way, key), owner = path[-1], _spelt(path[:-1])
    asked, there = _spelt(path), "items" if isinstance(params, list | tuple) else "names"
    if isinstance(params, dict):
        known, there = [repr(name) for name in params], "keys"
        fix = f"say {owner}[{key!r}]" if way is Way.ATTRIBUTE and key in params else ""
    elif isinstance(params, list | tuple):
        known = [str(len(params))]
        fix = "count from 0" if way is Way.ITEM else f"say {owner}[0]"
    else:
        known = [name for name in attributes_of(params) if not name.startswith("_")]
        fix = f"say {owner}.{key}" if way is Way.ITEM and key in known else ""
    fix = fix or "give the parameters that name before the cell runs, or read an existing one"
    return (
        f"a cell reads {asked}, and there is none.\n"
        f"  rule: {owner} is a {type(params).__name__}; its {there}: "
        f"{', '.join(known[:12]) or 'none'}{', …' if len(known) > 12 else ''}\n"
        f"  fix:  {fix}"
    )


def _spelt(path: Path) -> str:
    text = "p"
    for way, key in path:
        text += f".{key}" if way is Way.ATTRIBUTE else f"[{key!r}]"
    return text
