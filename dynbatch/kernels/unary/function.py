"""What a function of one value declares: NumPy code, CUDA expressions, what its derivative reads.

A function is declared once, as a class without instances. `FUNCTIONS` lists all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from dynbatch.backend import Array

Argument = float | str


class UnaryFunction:
    """y = f(x; arguments).

    A CUDA expression is C++ over x, or dy and s (the array that `reads` names), and the arguments
    a0, a1, …; each is a REAL. It may call what `common.cuh` defines; numbers are integers or casts
    to REAL, so that no float is computed as a double.

    Attributes:
        name:          of the function, and of its CUDA kernel.
        arguments:     names of its static arguments.
        forward:       (x, out, *arguments); `out` may be `x`.
        backward:      (dy, saved, out, *arguments), with saved = x or y as `reads` says.
        reads:         "input", "output", or "none".
        inplace:       whether `out` of backward may be dy.
        slope:         (saved, out), out = f'(x), where backward is a product with it.
        with_slope:    (x, *arguments) -> f(x) and f'(x), of functions that may be a gate's.
        cuda_forward:  a call of the CUDA function with its name, unless declared.
        cuda_backward: the gradient of x.
        cuda_variants: both expressions for a text argument, of which each has its own kernel.
    """

    name: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    forward: ClassVar[Callable[..., object]]
    backward: ClassVar[Callable[..., object]]
    reads: ClassVar[str]
    inplace: ClassVar[bool] = False
    slope: ClassVar[Callable[..., object] | None] = None
    with_slope: ClassVar[Callable[..., tuple[Array, Array]]]
    cuda_forward: ClassVar[str]
    cuda_backward: ClassVar[str]
    cuda_variants: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init_subclass__(cls, is_base: bool = False) -> None:
        if is_base:
            return
        cls.name = cls.__name__
        cls.arguments = tuple(inspect.signature(cls.forward).parameters)[2:]
        if "cuda_forward" not in cls.__dict__:
            cls.cuda_forward = f"{cls.name}(x)"
        FUNCTIONS[cls.name] = cls


FUNCTIONS: dict[str, type[UnaryFunction]] = {}


def variant(name: str, arguments: Sequence[Argument]) -> tuple[str, tuple[float, ...]]:
    """What compiled code calls a function with its static arguments, and those that are numbers.

    A text argument names a variant: gelu with "tanh" is gelu_tanh; "none" is gelu itself.
    """
    if not arguments:
        return name, ()
    words = [text for text in arguments if isinstance(text, str) and text != "none"]
    numbers = tuple([number for number in arguments if not isinstance(number, str)])
    return "_".join([name, *words]), numbers


class SlopeFunction(UnaryFunction, is_base=True):
    """A function whose backward multiplies dy by `slope`."""

    @classmethod
    def backward(cls, dy: Array, saved: Array, out: Array) -> None:
        assert cls.slope is not None
        cls.slope(saved, out)
        np.multiply(out, dy, out=out)

    @classmethod
    def with_slope(cls, x: Array) -> tuple[Array, Array]:
        assert cls.slope is not None and cls.reads == "output"
        y, slope = np.empty_like(x), np.empty_like(x)
        cls.forward(x, y)
        cls.slope(y, slope)
        return y, slope
