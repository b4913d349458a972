"""`GivenArray`: an array of a block that is traced, which remembers what NumPy makes of it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.blocks.sizes import leaves_of, mapped
from dynbatch.compiler.traced import same
from dynbatch.errors import GraphError

ROOMS = ("arguments", "blocks", "cells", "compiler", "kernels", "names", "nodes", "parameter")
INSIDE = tuple([f"dynbatch.{room}" for room in ROOMS])
OF_NUMPY = ("__array_finalize__", "__array_function__", "__array_priority__", "__array_ufunc__")
METHODS = frozenset(
    ("astype", "clip", "copy", "flatten", "ravel", "repeat", "reshape", "take", "transpose")
)
"""Methods that make another array, whose shape and values decide nothing."""
TOUCH, SHAPE = "is_touched", "reads_shapes"
"""Looks that `GivenArrays` notes."""
UNSEEN = frozenset(("dtype", "ndim", "view", "number", "log", "__class__", *OF_NUMPY))
"""Attributes that tell nothing of the values."""


class NotTraceable(GraphError):
    """A block does what no trace can record; the text says what."""


@dataclass(frozen=True)
class Place:
    """Stands for an array in a `Recipe`: its number among those of the block and those made."""

    number: int


class Recipe(NamedTuple):
    """A call of NumPy that made an array of others."""

    function: Callable[..., Any]
    arguments: Any
    options: Any

    def on(self, arrays: Mapping[int, Array]) -> Array:
        result: Array = self.function(*_at(self.arguments, arrays), **_at(self.options, arrays))
        return result

    def is_like(self, other: Recipe | None) -> bool:
        return (
            other is not None
            and self.function == other.function
            and same(self.arguments, other.arguments)
            and same(self.options, other.options)
        )


class GivenArrays:
    """The arrays of one trace.

    Attributes:
        arrays:     those that the block is given, then what NumPy made of them, in order.
        recipes:    how; None for those that are given.
        are_lists:  whether the block's caller, or a slice of it, has a list there.
        is_touched: whether the block looked into one, so that its values may decide something.
        reads_shapes: whether it read the length or the shape of one.
    """

    def __init__(self, arrays: Sequence[Array], are_lists: Sequence[bool]) -> None:
        self.arrays = list(arrays)
        self.recipes: list[Recipe | None] = [None] * len(arrays)
        self.are_lists = list(are_lists)
        self.is_touched = False
        self.reads_shapes = False

    def given(self) -> list[Array]:
        return [self._numbered(array, number) for number, array in enumerate(self.arrays)]

    def made(self, function: Callable[..., Any], arguments: Any, options: Any) -> Any:
        """The result of a call of NumPy, noted if it is an array."""
        result = function(*_plain(arguments), **_plain(options))
        is_array = isinstance(result, np.ndarray) and result.ndim
        if not is_array or "out" in options or _works_inside():
            self.note(TOUCH)
            return result
        self.arrays.append(result)
        self.recipes.append(Recipe(function, _placed(arguments), _placed(options)))
        is_slice = function is operator.getitem
        self.are_lists.append(is_slice and self.are_lists[arguments[0].number])
        return self._numbered(result, len(self.arrays) - 1)

    def recipes_of(self, number: int) -> dict[int, Recipe]:
        """The recipes that make an array from those that are given, in order."""
        recipe = self.recipes[number]
        if recipe is None:
            return {}
        read = [x for x in leaves_of((recipe.arguments, recipe.options)) if isinstance(x, Place)]
        recipes: dict[int, Recipe] = {}
        for source in read:
            recipes |= self.recipes_of(source.number)
        return {**recipes, number: recipe}

    def note(self, look: str) -> None:
        """Note a look into an array, or at its shape, unless a node type takes it."""
        setattr(self, look, getattr(self, look) or not _works_inside())

    def _numbered(self, array: Array, number: int) -> GivenArray:
        view = array.view(GivenArray)
        view.log, view.number = self, number
        return view


class GivenArray(np.ndarray):
    """An array that a block is given while it is traced, or that NumPy made of such arrays.

    Node types make plain arrays of it first, which is not noted.
    """

    log: GivenArrays | None = None
    number = -1

    def __getattribute__(self, name: str) -> Any:
        if name in ("shape", "size"):
            _note(self, SHAPE)
        elif name in METHODS:
            method = getattr(np.ndarray, name)
            return lambda *arguments, **options: _made(method, (self, *arguments), options)
        elif name == "T":
            return _made(np.transpose, (self,), {})
        elif name not in UNSEEN:
            _note(self)
        return super().__getattribute__(name)

    def __len__(self) -> int:
        _note(self, SHAPE)
        return super().__len__()

    def __getitem__(self, key: Any) -> Any:
        return _made(operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        _note(self)
        _plain(self)[_plain(key)] = _plain(value)

    def __iter__(self) -> Any:
        _note(self)
        return iter(self.view(np.ndarray))

    def __contains__(self, value: object) -> bool:
        _note(self)
        return value in self.view(np.ndarray)

    def __bool__(self) -> bool:
        _note(self)
        return bool(self.view(np.ndarray))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any([x.log is not None and x.log.are_lists[x.number] for x in _given_in(inputs)]):
            raise NotTraceable("it computes with a list, which is an array while it is traced")
        return _made(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return _made(function, args, options)


def _made(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    logs = {x.log for x in _given_in((arguments, options))}
    log = logs.pop()
    if log is not None and not logs:
        return log.made(function, arguments, options)
    for x in _given_in((arguments, options)):
        _note(x)
    return function(*_plain(arguments), **_plain(options))


def _note(array: GivenArray, look: str = TOUCH) -> None:
    if array.log is not None:
        array.log.note(look)


def is_inside(frame: Any) -> bool:
    """Whether a function is one of ours that take nodes and arrays, and not the block's."""
    return str(frame.f_globals.get("__name__")).startswith(INSIDE)


def _works_inside() -> bool:
    """Whether one of our own functions works with an array, and not the block's."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return is_inside(frame)


def _given_in(value: Any) -> list[GivenArray]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, GivenArray)]


def _plain(value: Any) -> Any:
    return mapped(lambda x: x.view(np.ndarray) if isinstance(x, GivenArray) else x, value)


def _placed(value: Any) -> Any:
    return mapped(lambda x: Place(x.number) if isinstance(x, GivenArray) else x, value)


def _at(value: Any, arrays: Mapping[int, Array]) -> Any:
    return mapped(lambda x: arrays[x.number] if isinstance(x, Place) else x, value)
