"""`Pair`: a function of two values, written once, from which all its code is printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property

from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.calculus import slope_times
from dynbatch.kernels.scalar.definition import Definition
from dynbatch.kernels.scalar.expressions import (
    Expression,
    argument,
    expand,
    number,
    variable,
    variables,
)

Body = Callable[[Expression, Expression], Expression]
Kernels = tuple[Callable[..., None], ...]


class Pair(Definition):
    """y = f(a, b), elementwise; either may be a number. It is its own NumPy kernel: see `forward`.

    Args:
        body:   (a, b) -> y, over expressions; it names the function and both values.
        slopes: the derivative by a value, over both, by its name, where it is not the derived one:
                see `Function`.

    Attributes:
        names:   of the values.
        over_dy: whether gradients are to be written over dy, where NumPy needs arrays of its own.
    """

    names_of_arguments: tuple[str, ...] = ()
    over_dy = True

    def __init__(self, body: Body, slopes: Mapping[str, Body]) -> None:
        super().__init__(body)
        self.body, self.slopes = body, slopes
        self.names = tuple(inspect.signature(body).parameters)

    def __repr__(self) -> str:
        return f"<function {self.name} of two numbers>"

    def gradient(self, side: int, with_number: bool = False) -> tuple[Expression, Expression]:
        """The gradient of a value, 0 where none passes, and y.

        Args:
            side:        0 for the first value, 1 for the second.
            with_number: whether the other one is a number for all elements.
        """
        others = argument if with_number else variable
        a, b = [(variable if k == side else others)(x) for k, x in enumerate(self.names)]
        y, x, dy = self.body(a, b), (a, b)[side], variable("dy")
        if self.names[side] in self.slopes:
            return dy * self.slopes[self.names[side]](a, b), y
        return slope_times(y, x, dy) or number(0), y

    def value(self, language: str = "") -> Expression:
        """y, over the values."""
        return expand(self.body(*map(variable, self.names)), language)

    def gradients(self, language: str = "", with_number: bool = False) -> list[Expression]:
        """The gradients of both values in primitives, over dy and the values."""
        return [expand(self.gradient(side, with_number)[0], language) for side in (0, 1)]

    @cached_property
    def reads(self) -> tuple[bool, ...]:
        """Whether the two gradients read the first value, and whether the second."""
        read = variables(*self.gradients())
        return tuple([name in read for name in self.names])

    @cached_property
    def passes(self) -> tuple[bool, ...]:
        """Whether the gradient of the first value is dy itself, and that of the second."""
        return tuple([x is variable("dy") for x in self.gradients()])

    @cached_property
    def is_differentiable(self) -> bool:
        return any([not x.is_uniform for x in self.gradients()])

    @cached_property
    def forward(self) -> Callable[..., None]:
        """The NumPy code: (a, b, out); `out` may be either."""
        roots = {"out": self.value("numpy")}
        return numpy_printer.function("forward", (*self.names, "out"), roots, {*self.names})

    @cached_property
    def backward(self) -> Kernels:
        """The NumPy code of both gradients: (dy, a, b, out)."""
        return tuple([code for code, _ in self._backward()])

    @cached_property
    def backward_with_number(self) -> Kernels:
        """The NumPy code of both gradients where the other value is a number."""
        return tuple([code for code, _ in self._backward(with_number=True)])

    @cached_property
    def inplace(self) -> bool:
        """Whether `out` of the gradients may be dy."""
        return all([is_safe for _, is_safe in self._backward()])

    def _backward(self, with_number: bool = False) -> list[tuple[Callable[..., None], bool]]:
        parameters = ("dy", *self.names, "out")
        roots = self.gradients("numpy", with_number)
        return [numpy_printer.gradient(parameters, root, self.over_dy) for root in roots]


def pair(table: dict[str, Pair], **slopes: Body) -> Callable[[Body], Pair]:
    """Define the function of two values that the decorated one is, in a table: see `Pair`."""

    def define(body: Body) -> Pair:
        return table.setdefault(body.__name__, Pair(body, slopes))

    return define
