"""`Arguments`: what a block is given, sorted into nodes, arrays, parameters and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum, auto
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.nodes.attention.bias import BiasRule
from dynbatch.nodes.node import WIDTH, Node, Owner

Form = tuple[Any, ...]
"""The form of one argument: its kind, and what must be equal for calls to share a trace."""


class ArgumentKind(IntEnum):
    """The meaning of an argument to a block."""

    NODE = auto()
    ARRAY = auto()
    """Of this sentence: ids, a mask."""
    PARAMS = auto()
    """A module, a parameter: known by identity, and by what the block reads of it."""
    GRAPH = auto()
    SETTING = auto()
    """A number, a string, None, a rule of distances: another value means another trace."""
    TUPLE = auto()
    LIST = auto()
    DICT = auto()


NODE, ARRAY, PARAMS, SETTING = (
    ArgumentKind.NODE, ArgumentKind.ARRAY, ArgumentKind.PARAMS, ArgumentKind.SETTING,
)  # fmt: skip
OF_GRAPH = (ArgumentKind.GRAPH,)
PLAIN = frozenset((type(None), bool, int, float, str))


class Arguments:
    """The arguments of one call.

    Attributes:
        forms:  of each, keyword arguments last; equal for calls that may share a trace.
        nodes, arrays, params: those among them, in order.
        are_lists: whether each array was given as a list.
        graph:  the graph of the nodes, or the one that was given.
    """

    __slots__ = ("are_lists", "arrays", "forms", "graph", "names", "nodes", "params")

    def __init__(self, positional: Sequence[object], named: dict[str, object]) -> None:
        self.nodes: list[Node] = []
        self.arrays: list[Array] = []
        self.are_lists: list[bool] = []
        self.params: list[object] = []
        self.graph: Owner | None = None
        self.names = tuple(named)
        values = (*positional, *named.values()) if named else positional
        self.forms = tuple([self._form(value) for value in values])

    def _form(self, value: Any) -> Form:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(np.array(value), False)
        if kind in PLAIN:
            return SETTING, kind, value
        if isinstance(value, Node):
            self.nodes.append(value)
            if self.graph is None:
                self.graph = value.graph
            ragged = value.ragged
            return NODE, value.ndim, None if ragged & WIDTH else value.width, ragged
        if isinstance(value, str | bool | int | float | np.generic | Enum | BiasRule):
            return SETTING, kind, value
        if isinstance(value, np.ndarray):
            return self._array(np.array(value), False)
        if isinstance(value, tuple):
            return ArgumentKind.TUPLE, kind, *map(self._form, value)
        if isinstance(value, list):
            if _holds_numbers(value):
                return self._array(np.array(value, None if value else np.int64), True)
            return ArgumentKind.LIST, *map(self._form, value)
        if isinstance(value, dict):
            return ArgumentKind.DICT, tuple(value), *map(self._form, value.values())
        if hasattr(value, "add_light") and not isinstance(value, type):
            self.graph = value
            return OF_GRAPH
        self.params.append(value)
        return PARAMS, getattr(value, "training", None)  # it may change in a graph

    def _array(self, array: Array, is_list: bool) -> Form:
        self.arrays.append(array)
        self.are_lists.append(is_list)
        return ARRAY, array.dtype.char, array.ndim, is_list

    def with_leaves(
        self, nodes: Sequence[Node], arrays: Sequence[Array], params: Sequence[object], graph: Owner
    ) -> tuple[list[object], dict[str, object]]:
        """Positional and named arguments of these forms, made of other leaves."""
        leaves = {
            ArgumentKind.NODE: iter(nodes),
            ArgumentKind.ARRAY: iter(arrays),
            ArgumentKind.PARAMS: iter(params),
        }
        values = [_value(form, leaves, graph) for form in self.forms]
        first = len(values) - len(self.names)
        return values[:first], dict(zip(self.names, values[first:], strict=True))


def _holds_numbers(values: list[Any]) -> bool:
    """Whether a list is an array written in Python, of one dimension or more; empty ones are."""
    return all(
        [
            _holds_numbers(value)
            if isinstance(value, list)
            else isinstance(value, int | float | np.generic)
            for value in values
        ]
    )


def _value(form: Form, leaves: dict[ArgumentKind, Iterator[Any]], graph: Owner) -> object:
    slot = form[0]
    if slot in leaves:
        return next(leaves[slot])
    if slot is ArgumentKind.GRAPH:
        return graph
    if slot is ArgumentKind.SETTING:
        return form[2]
    if slot is ArgumentKind.DICT:
        values = [_value(part, leaves, graph) for part in form[2:]]
        return dict(zip(form[1], values, strict=True))
    if slot is ArgumentKind.TUPLE:
        kind, *forms = form[1:]
        members = [_value(part, leaves, graph) for part in forms]
        return kind(*members) if hasattr(kind, "_fields") else tuple(members)
    return [_value(part, leaves, graph) for part in form[1:]]


def sizes_of(nodes: Sequence[Node], arrays: Sequence[Array]) -> tuple[int, ...]:
    """The numbers of rows, ragged widths and array dimensions, which may differ by sentence."""
    sizes: list[int] = []
    for node in nodes:
        if node.ndim == 2:
            sizes.append(node.rows)
        if node.ragged & WIDTH and node.ndim:
            sizes.append(node.width)
    for array in arrays:
        sizes += array.shape
    return tuple(sizes)
