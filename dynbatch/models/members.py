"""Parameters and modules inside a value, through lists, dicts, tuples and dataclasses."""

from __future__ import annotations

import itertools
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from dataclasses import fields, is_dataclass
from functools import partial
from types import GeneratorType, MappingProxyType, NoneType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from dynbatch.attributes import attributes_of
from dynbatch.errors import ArgumentError

Member = TypeVar("Member")

# Passed over without a look: most of what long lists hold.
PLAIN = frozenset({NoneType, bool, bytes, complex, float, int, str})
# Items without an order, or of a view that no name leads to.
UNNAMED_ITEMS = (Set, ValuesView)
EMPTY: tuple[Any, ...] = ([], {}, {}.values(), {}.items(), deque())
WITHOUT_LAST: tuple[Any, ...] = ((), set())
# Without an end, and none of them a module.
NUMBERS = itertools.count
# Gives its items once: nobody can look what they are.
ONCE: tuple[type, ...] = (
    GeneratorType, enumerate, filter, map, reversed, zip,
    *[type(iter(empty)) for empty in (*EMPTY, *WITHOUT_LAST)],
    *[type(reversed(empty)) for empty in EMPTY],
    *[kind for kind in vars(itertools).values() if isinstance(kind, type) and kind is not NUMBERS],
)  # fmt: skip

RULE = (
    "parameters and modules are found in lists, tuples, dicts, named tuples and dataclasses, at "
    "any depth,\n        where each has a place and a name"
)


def members(
    owner: str, path: str, value: object, kinds: tuple[type[Member], ...]
) -> Iterator[tuple[str, Member]]:
    """All objects of the types `kinds` in nested containers, with their paths.

    Paths are joined by dots: places of lists and tuples, keys of dicts, names of fields. A
    container that is there several times counts once, so that one may hold itself.

    Args:
        owner: the class whose attribute it is; errors name it.
        path:  the name of the attribute.

    Raises:
        ArgumentError: a set, a view of a dict or its keys hold some, or they have one name; or it
            is a generator, or another iterator.
    """
    seen: dict[int, object] = {}  # kept alive, so that an id stays its own
    waiting = [(path, iter([("", value)]))]
    while waiting:
        above, items = waiting[-1]
        for key, item in items:
            if type(item) in PLAIN:
                continue
            where = f"{above}.{key}" if key else above
            if isinstance(item, kinds):
                yield where, item
                continue
            inner = parts(owner, where, item, kinds)
            if inner is not None and id(item) not in seen:
                seen[id(item)] = item
                waiting.append((where, iter(inner)))
                break  # its items come before what follows it
        else:
            waiting.pop()


def parts(
    owner: str, path: str, value: object, kinds: tuple[type, ...]
) -> Iterable[tuple[str, object]] | None:
    """The items of a container with their names; None if it is not a container."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, list | tuple | deque | UserList):
        return ((str(number), item) for number, item in enumerate(value))
    if isinstance(value, dict | UserDict | MappingProxyType | ChainMap):
        return _keyed(owner, path, value, kinds)
    if isinstance(value, SimpleNamespace):
        return vars(value).items()
    if is_dataclass(value) and not isinstance(value, type):
        names = dict.fromkeys([*(field.name for field in fields(value)), *attributes_of(value)])
        return ((name, getattr(value, name)) for name in names if hasattr(value, name))
    if isinstance(value, partial):
        held = {"func": value.func, "args": value.args, "keywords": value.keywords}
        return (held | attributes_of(value)).items()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return parts(owner, path, value.tolist(), kinds)
    if isinstance(value, ONCE):
        what = f"a {type(value).__name__}, which gives its items once"
        raise _refusal(owner, path, what, "list(…) of it")
    if isinstance(value, UNNAMED_ITEMS) and _holds(owner, path, value, kinds):
        what = f"a {type(value).__name__} that holds parameters or modules"
        raise _refusal(owner, path, what, "a list, or a dict with a name for each")
    return None


def _keyed(
    owner: str, path: str, value: Mapping[object, object], kinds: tuple[type, ...]
) -> Iterable[tuple[str, object]]:
    """Items by the text of their keys, which tells those apart that are parameters or modules."""
    names: dict[str, object] = {}
    for key, item in value.items():
        if type(key) not in PLAIN and _holds(owner, path, [key], kinds):
            what = f"a dict with a key that is or holds a parameter or module, {key!r:.60}"
            raise _refusal(owner, path, what, "a list of them, or of pairs (module, value)")
        if type(item) in PLAIN:
            continue
        name = str(key)
        why = ""
        if _is_by_address(key):
            why = "no name but an address"
        elif not name or name in names:
            why = "the name of another key" if name else "an empty name"
        if why and _holds(owner, path, [item, names.get(name)], kinds):
            instead = "each parameter or module a key of another text"
            raise _refusal(owner, path, f"a dict whose key {key!r} has {why}", instead)
        names[name] = item
    return names.items()


def _is_by_address(key: object) -> bool:
    """Whether an object's text contains its address, which differs in each run."""
    return hex(id(key))[2:] in str(key).lower()


def _holds(owner: str, path: str, items: Iterable[object], kinds: tuple[type, ...]) -> bool:
    return any(True for _ in members(owner, path, list(items), kinds))


def _refusal(owner: str, path: str, what: str, instead: str) -> ArgumentError:
    return ArgumentError.at_caller(
        f"{owner}.{path} is {what}.\n  rule: {RULE}\n  fix:  give {instead}"
    )
