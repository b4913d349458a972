"""`Function`: a function of one value, written once, from which all its code is printed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.calculus import Gradients, slope_times
from dynbatch.kernels.scalar.definition import Definition
from dynbatch.kernels.scalar.expressions import (
    Expression,
    Operand,
    argument,
    call,
    expand,
    make,
    number,
    substitute,
    variable,
    variables,
)

Argument = float | str
Body = Callable[..., Expression]
Slope = Callable[..., "Expression | float | None"]


class Function(Definition):
    """y = f(x; arguments), elementwise. It is its own NumPy kernel: see `forward`, `backward`.

    Args:
        body:    (x, arguments …) -> y, over expressions; its name is the function's.
        slope:   f', over any of x, y and the arguments, by name, where it is not the derived one:
                 a derived one may lose its value in a tail, where parts cancel or overflow. None
                 passes no gradient.
        by_hand: calls of code that a language has by hand for the value, such as
                 "sigmoid({0})" of "cuda".
        forms:   the functions that a text argument names; others are this one.

    Attributes:
        arguments: names of its static arguments.
    """

    def __init__(
        self, body: Body, slope: Slope | None = None, by_hand: Mapping[str, str] | None = None,
        forms: Mapping[str, Function] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(body)
        self.body, self.slope, self.by_hand = body, slope, by_hand or {}
        self.forms = forms or {}
        self.arguments = tuple(inspect.signature(body).parameters)[1:]
        if self.forms:
            self.arguments = ("approximate",)

    def __repr__(self) -> str:
        return f"<function {self.name} of numbers>"

    def __call__(self, x: Expression, *arguments: Operand) -> Expression:
        return call(self, x, *arguments)

    def chosen(self, arguments: Sequence[Argument]) -> tuple[Function, tuple[float, ...]]:
        """The function that static arguments choose, and those of them that are numbers."""
        if not self.forms:
            return self, tuple(arguments)  # type: ignore[arg-type]
        (word,) = arguments
        return self.forms.get(str(word), self), ()

    def every_form(self) -> Iterator[Function]:
        yield self
        yield from self.forms.values()

    @cached_property
    def names(self) -> tuple[Expression, ...]:
        """The static arguments that are numbers, as variables."""
        return () if self.forms else tuple(map(argument, self.arguments))

    def pull(self, dy: Expression, y: Expression, x: Expression, *numbers: Expression) -> Gradients:
        """The gradient of x, and None for the numbers."""
        gradient: Expression | None
        if self.slope is None:
            gradient = slope_times(self.body(x, *numbers), x, dy)
        else:
            known = dict(zip(("x", "y", *self.arguments), (x, y, *numbers), strict=True))
            slope = self.slope(*[known[name] for name in inspect.signature(self.slope).parameters])
            gradient = None if slope is None else dy * slope
        return gradient, *[None] * len(numbers)

    @cached_property
    def derivative(self) -> Expression | None:
        """dx, over dy and y where that is enough, else over dy and x; None where it is 0."""
        x, y = variable("x"), variable("y")
        (dx, *_) = self.pull(variable("dy"), y, x, *self.names)
        if dx is None:
            return None
        by_output = substitute(dx, self.body(x, *self.names), y)
        if "x" not in variables(by_output):
            return by_output
        return substitute(dx, y, self(x, *self.names))

    @cached_property
    def reads(self) -> str:
        """The array that its derivative reads: "input", "output", or "none"."""
        read = set() if self.derivative is None else variables(expand(self.derivative))
        return "input" if "x" in read else "output" if "y" in read else "none"

    def value(self, language: str = "") -> Expression:
        """y, over x."""
        return expand(self(variable("x"), *self.names), language)

    def gradient(self, language: str = "") -> Expression:
        """dx in primitives, over dy and x or y."""
        return number(0) if self.derivative is None else expand(self.derivative, language)

    @cached_property
    def forward(self) -> Callable[..., None]:
        """The NumPy code: (x, out, *arguments); `out` may be x."""
        return self._for_each_form(
            lambda f: numpy_printer.function(
                "forward", ("x", "out", *f.names_of_arguments), {"out": f.value("numpy")}, {"x"}
            )
        )

    @cached_property
    def backward(self) -> Callable[..., None]:
        """The NumPy code: (dy, saved, out, *arguments), with saved = x or y as `reads` says."""
        return self._for_each_form(lambda f: f._backward[0])

    @cached_property
    def inplace(self) -> bool:
        """Whether `out` of backward may be dy."""
        return self._backward[1]

    @cached_property
    def _backward(self) -> tuple[Callable[..., None], bool]:
        saved = "y" if self.reads == "output" else "x"
        parameters = ("dy", saved, "out", *self.names_of_arguments)
        return numpy_printer.gradient(parameters, self.gradient("numpy"))

    @cached_property
    def names_of_arguments(self) -> tuple[str, ...]:
        return tuple([name.value for name in self.names])

    def _for_each_form(self, code: Callable[[Function], Callable[..., Any]]) -> Callable[..., Any]:
        if not self.forms:
            return code(self)
        forms = {word: code(form) for word, form in {"": self, **self.forms}.items()}

        def choose(*given: Any) -> Any:
            *arrays, word = given
            return forms.get(word, forms[""])(*arrays)

        return choose


FUNCTIONS: dict[str, Function] = {}
"""The functions of one value, by name; forms of others are not among them."""


def function(
    slope: Slope | None = None, forms: Mapping[str, Function] | None = None, **by_hand: str
) -> Callable[[Body], Function]:
    """Define the function of one value that the decorated one is: see `Function`."""

    def define(body: Body) -> Function:
        return FUNCTIONS.setdefault(body.__name__, Function(body, slope, by_hand, forms))

    return define


def primitive_function(name: str, doc: str) -> Function:
    """Define the function that a primitive of its name is, in the module that calls."""

    def body(x: Expression) -> Expression:
        return make(name, x)

    body.__name__, body.__doc__ = name, doc
    body.__qualname__, body.__module__ = name, sys._getframe(1).f_globals["__name__"]
    return function()(body)


def every_function() -> list[Function]:
    """All functions of one value, with their forms."""
    return [form for each in FUNCTIONS.values() for form in each.every_form()]
