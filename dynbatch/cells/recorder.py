"""`Recorder`: notes what a cell reads from its parameters, so that a change can be seen later."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from dynbatch.errors import GraphError

Path = tuple[tuple[str, Any], ...]
"""How a value is reached: (("attribute", "gates"), ("item", 0)) is params.gates[0]."""

COMPARED = (int, float, str, bool, bytes, MethodType)


class Recorder:
    """Stands in for `params` while a cell is traced.

    What it is asked for it hands on: parameters, numbers and functions as they are, and noted;
    modules, namespaces, lists and dicts inside recorders of their own. Methods run on the recorder,
    so that what they read is noted too: a sub-module's `training`, for instance.

    Raises:
        GraphError: the cell writes to its parameters, which would happen once and not every step.
    """

    def __init__(self, params: Any, path: Path = (), reads: dict[Path, Any] | None = None) -> None:
        object.__setattr__(self, "_params", params)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_reads", {} if reads is None else reads)

    @property
    def __class__(self) -> Any:  # `super()` and `isinstance` in a module's methods ask for it
        return type(_own(self, "_params"))

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        _refuse("the class")

    def __getattr__(self, name: str) -> Any:
        return _noted(self, ("attribute", name))

    def __getitem__(self, key: Any) -> Any:
        return _noted(self, ("item", key))

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(name)

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse(repr(key))

    def __len__(self) -> int:
        length: int = _noted(self, ("length", None))
        return length

    def __iter__(self) -> Iterator[Any]:
        params, length = _own(self, "_params"), len(self)
        return iter(params) if isinstance(params, dict) else iter([self[k] for k in range(length)])

    def __contains__(self, key: Any) -> bool:
        return key in list(self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        params = _own(self, "_params")
        function = type(params).__call__
        if isinstance(function, FunctionType):
            return function(self, *arguments, **named)
        return params(*arguments, **named)


def reads_of(recorder: Recorder) -> dict[Path, Any]:
    """What has been read through it, by path."""
    reads: dict[Path, Any] = _own(recorder, "_reads")
    return reads


def is_unchanged(params: Any, reads: dict[Path, Any]) -> bool:
    """Whether reading `params` again would give what was read."""
    try:
        return all([_same(_follow(params, path), value) for path, value in reads.items()])
    except (AttributeError, KeyError, IndexError):
        return False


def _own(recorder: Recorder, name: str) -> Any:
    return object.__getattribute__(recorder, name)


def _refuse(name: str) -> None:
    raise GraphError(
        f"a cell sets {name} of its parameters.\n"
        "  rule: a cell is traced once and computes; it changes nothing\n"
        "  fix:  return what changes as a part of the state"
    )


def _read(params: Any, way: str, key: Any) -> Any:
    if way == "length":
        return len(params)
    return params[key] if way == "item" else getattr(params, key)


def _noted(recorder: Recorder, step: tuple[str, Any]) -> Any:
    params, reads = _own(recorder, "_params"), reads_of(recorder)
    if isinstance(params, dict) and step[0] == "attribute":  # items, values, get
        return getattr({key: recorder[key] for key in recorder}, step[1])
    value = _read(params, *step)
    if isinstance(value, MethodType) and value.__self__ is params:
        return MethodType(value.__func__, recorder)
    path = (*_own(recorder, "_path"), step)
    nested = isinstance(value, list | tuple | dict) or hasattr(value, "__dict__")
    if nested and not isinstance(value, type) and not hasattr(value, "__name__"):
        return Recorder(value, path, reads)
    reads[path] = value
    return value


def _follow(params: Any, path: Path) -> Any:
    for step in path:
        params = _read(params, *step)
    return params


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    return isinstance(then, COMPARED) and type(now) is type(then) and bool(now == then)
