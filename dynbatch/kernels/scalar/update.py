"""`UpdateRule`: a step of an optimizer, written once, from which all its code is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import NamedTuple

from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.definition import Definition
from dynbatch.kernels.scalar.expressions import (
    Expression,
    argument,
    conditions,
    decide,
    equal,
    expand,
    number,
    rebuild,
    variable,
    where,
)

Replaced = Mapping[str, Expression]
"""What takes the place of arrays' elements, by the names of the arrays."""

SCRATCH = ("t0", "t1")
"""The arrays that the NumPy code is given for values between."""


class UpdateOutcome(NamedTuple):
    """The part of an update that follows from the conditions on its numbers.

    Attributes:
        slots:     names of those that it reads and replaces; it has no others.
        needs_gradient: whether elements whose gradient is 0 keep their value and their slots.
    """

    slots: tuple[str, ...]
    needs_gradient: bool


class UpdateRule(Definition):
    """New elements of a parameter and of its slots, from the old ones, its gradient, and numbers.

    Args:
        body: (value, gradient, slots …, numbers …) -> the new elements by the names of the arrays:
            "value" and every slot. What else it takes is a number, the same for all elements. Its
            name is the update's. A slot that the numbers leave as it is does not exist.

    Attributes:
        slots, numbers: names, in the order of the body's.
    """

    def __init__(self, body: Callable[..., Replaced]) -> None:
        super().__init__(body)
        names = tuple(inspect.signature(body).parameters)
        outputs = body(*map(variable, names))
        self.slots = tuple([name for name in names if name in outputs and name != "value"])
        arrays = ("value", "gradient", *self.slots)
        self.numbers = tuple([name for name in names if name not in arrays])
        self._body = body
        self._names = names

    def __repr__(self) -> str:
        return f"<update {self.name} of parameters>"

    @cached_property
    def maximizing(self) -> UpdateRule:
        """This update with the opposite of each gradient."""

        @wraps(self._body)
        def body(value: Expression, gradient: Expression, *others: Expression) -> Replaced:
            return self._body(value, -gradient, *others)

        body.__name__ = f"maximizing_{self.name}"
        body.__qualname__ = f"{self.__qualname__}.maximizing"
        return UpdateRule(body)

    def outputs(self, language: str = "") -> dict[str, Expression]:
        """The new elements of the value and of the slots, in this order.

        In C and CUDA, over names with a line below, which are none of those that are by hand there.
        """
        end = "_" if language in ("c", "cuda") else ""
        operands = [(argument if x in self.numbers else variable)(x + end) for x in self._names]
        outputs = self._body(*operands)
        return {name: expand(outputs[name], language) for name in ("value", *self.slots)}

    @cached_property
    def run(self) -> Callable[..., None]:
        """The NumPy code, in place: (value, gradient, *slots, *scratch, *numbers).

        A slot that does not exist is None. The scratch is two arrays.
        """
        names = ("value", "gradient", *self.slots, *SCRATCH, *self.numbers)
        return numpy_printer.function(self.name, names, self.outputs("numpy"), scratch=SCRATCH)

    def outcome(self, numbers: tuple[float, ...]) -> UpdateOutcome:
        """The outcome that follows from numbers."""
        key = self._ask(*numbers)
        if key not in self._outcomes:
            truth = dict(zip(self._tests, key, strict=True))
            roots = {name: decide(root, truth) for name, root in self.outputs().items()}
            slots = tuple([name for name in self.slots if roots[name] is not variable(name)])
            kept = rebuild(tuple(roots.values()), _without_gradient)
            is_kept = all([root is variable(x) for x, root in zip(roots, kept, strict=True)])
            self._outcomes[key] = UpdateOutcome(slots, is_kept)
        return self._outcomes[key]

    @cached_property
    def optional(self) -> set[str]:
        """The slots that some numbers leave as they are."""
        roots = self.outputs()
        return {
            x for x in self.slots if roots[x].op == "where" and variable(x) in roots[x].operands
        }

    @cached_property
    def _outcomes(self) -> dict[tuple[bool, ...], UpdateOutcome]:
        return {}

    @cached_property
    def _tests(self) -> list[Expression]:
        return list(conditions(*self.outputs().values()))

    @cached_property
    def _ask(self) -> Callable[..., tuple[bool, ...]]:
        return numpy_printer.question(self.numbers, self._tests)


UPDATES: dict[str, UpdateRule] = {}
"""The updates of dynbatch's own optimizers, by name: their C is one file."""


def update_rule(body: Callable[..., Replaced]) -> UpdateRule:
    """Define the update of an optimizer of dynbatch's that the decorated one is."""
    return UPDATES.setdefault(body.__name__, UpdateRule(body))


def decayed(gradient: Expression, value: Expression, weight_decay: Expression) -> Expression:
    """gradient + weight_decay · value; without decay the value may be infinite."""
    return where(equal(weight_decay, 0), gradient, gradient + weight_decay * value)


def times(x: Expression, factor: Expression) -> Expression:
    """x · factor, which often is 1."""
    return where(equal(factor, 1), x, x * factor)


def _without_gradient(part: Expression, xs: list[Expression]) -> Expression | None:
    """A part whose gradient is 0, where that makes it simpler; other numbers are finite."""
    zero = number(0)
    if part is variable("gradient"):
        return zero
    if zero not in xs:
        return None
    if part.op in ("add", "subtract"):
        return xs[0] if xs[1] is zero else xs[1] if part.op == "add" else None
    if part.op in ("multiply", "sqrt", "sign", "absolute", "negative"):
        return zero
    if part.op == "exp":
        return number(1)
    return zero if part.op == "divide" and xs[0] is zero else None
