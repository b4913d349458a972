"""Names and operators that do not exist here: each is an error that says what to write instead."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from dynbatch.errors import DtypeError, MissingAttributeError


class Absent:
    """A name that tensors have and the owner does not: using it is an error with the fix.

    An attribute of that name in a user's subclass takes precedence.
    """

    def __init__(self, fix: str) -> None:
        self._fix = fix

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type | None = None) -> object:
        if owner is None:
            return self
        attributes = getattr(owner, "__dict__", {})
        if self._name in attributes:
            return attributes[self._name]
        raise self._missing(owner)

    def __set__(self, owner: object, value: object) -> None:
        attributes = getattr(owner, "__dict__", None)
        if attributes is None:
            raise self._missing(owner)
        attributes[self._name] = value

    def _missing(self, owner: object) -> MissingAttributeError:
        return MissingAttributeError.at_caller(
            f"{owner!r} has no {self._name!r}.\n  fix:  {self._fix}"
        )


def refuse(owner: type, fix: str, *names: str, kind: type[Absent] = Absent) -> None:
    """Make `Absent` names of a class, all with one fix."""
    for name in names:
        absent = kind(fix)
        absent.__set_name__(owner, name)
        setattr(owner, name, absent)


class HasOperators:
    """Base of nodes: an operator between a node and another object calls the node's method."""

    __slots__ = ()


class HidesAbsent:
    """Base of classes with `Absent` names: `dir` does not list them, and `hasattr` denies them."""

    __slots__ = ()

    def __dir__(self) -> Iterable[str]:
        return [n for n in super().__dir__() if not isinstance(getattr(type(self), n, 0), Absent)]


def is_value(other: object) -> bool:
    """Whether `other` is a number, a list or an array of any library, but not a node."""
    if isinstance(other, int | float | complex | list | np.ndarray | np.generic | NoOperators):
        return True
    return hasattr(other, "__dlpack__") and not isinstance(other, HasOperators)


def _operator(
    sign: str, function: Callable[[Any, Any], Any], is_reflected: bool = False
) -> Callable[[Any, object], Any]:
    def apply(self: NoOperators, other: object) -> object:
        if not is_value(other):
            return NotImplemented  # a node knows what to do with it
        node = self._as_node()
        if node is None:
            raise self._refused(f"has no operator {sign}")
        return function(other, node) if is_reflected else function(node, other)

    return apply


def _operators(
    sign: str, function: Callable[[Any, Any], Any]
) -> tuple[Callable[[Any, object], Any], Callable[[Any, object], Any]]:
    """An operator, and the same with exchanged sides."""
    return _operator(sign, function), _operator(sign, function, is_reflected=True)


def _unary(sign: str, function: Callable[[Any], Any]) -> Callable[[NoOperators], Any]:
    def apply(self: NoOperators) -> Any:
        node = self._as_node()
        if node is None:
            raise self._refused(f"has no operator {sign}")
        return function(node)

    return apply


class NoOperators:
    """Base of classes without operators: using one is an error, unless a node can be meant.

    One is where the other side is a node, or where `_as_node` makes one.

    `==` stays identity, so that `in`, sets and dicts work; with a number or an array it is an
    error, since it would always be False.
    """

    __slots__ = ()

    __add__, __radd__ = _operators("+", operator.add)
    __sub__, __rsub__ = _operators("-", operator.sub)
    __mul__, __rmul__ = _operators("*", operator.mul)
    __truediv__, __rtruediv__ = _operators("/", operator.truediv)
    __floordiv__, __rfloordiv__ = _operators("//", operator.floordiv)
    __mod__, __rmod__ = _operators("%", operator.mod)
    __matmul__, __rmatmul__ = _operators("@", operator.matmul)
    __pow__, __rpow__ = _operators("**", operator.pow)
    __gt__ = _operator(">", operator.gt)
    __ge__ = _operator(">=", operator.ge)
    __lt__ = _operator("<", operator.lt)
    __le__ = _operator("<=", operator.le)
    __neg__ = _unary("-", operator.neg)
    __pos__ = _unary("+", operator.pos)
    __abs__ = _unary("abs", operator.abs)
    __invert__ = _unary("~", operator.invert)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NoOperators) or not is_value(other):
            return NotImplemented
        raise self._refused(f"is equal to itself only, not to a {type(other).__name__}")

    __hash__ = object.__hash__

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> object:
        if any([isinstance(operand, HasOperators) for operand in inputs]):
            return NotImplemented
        raise self._refused(f"is not an array for np.{ufunc.__name__}")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        raise self._refused("is not an array for np.asarray")

    def _as_node(self) -> Any:
        """A node that stands for it, where there can be one; else None."""
        return None

    def _refused(self, problem: str) -> DtypeError:
        """The error for an operator or another use that only nodes support."""
        return DtypeError.at_caller(f"{self!r} {problem}.\n  fix:  {self._instead()}")

    def _instead(self) -> str:
        """The text to write instead; the last line of these errors."""
        raise NotImplementedError
