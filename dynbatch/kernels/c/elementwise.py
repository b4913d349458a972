"""`kernels.elementwise` in C: what is one fast call of NumPy stays there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.printed import BACKWARD, FORWARD
from dynbatch.kernels.c.runtime.calls import print_call
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import ELEMENTS, only_c
from dynbatch.kernels.runtime.tasks import WORTH_A_THREAD
from dynbatch.kernels.unary import Argument, Function, arithmetic

# The exponents whose powers and derivatives are products: NumPy's other powers are as fast.
PRODUCTS = (2, 3, -1)


def apply(kernel: Function, x: Array, out: Array, *arguments: Argument) -> Any:
    function, numbers = kernel.chosen(arguments)
    call = _loop(function, "of")
    if call is None or (function is arithmetic.power and numbers[0] not in PRODUCTS):
        return NotImplemented
    return call(x, out, *numbers)


def apply_backward(
    kernel: Function, dy: Array, saved: Array, out: Array, *arguments: Argument
) -> Any:
    function, numbers = kernel.chosen(arguments)
    call = _loop(function, "back_narrow" if saved.dtype == np.uint16 else "back")
    if call is None or (function is arithmetic.power and numbers[0] not in PRODUCTS):
        return NotImplemented
    return call(dy, saved, out, *numbers)


@cache
def _loop(function: Function, way: str) -> Callable[..., Any] | None:
    """The call of a function of loops.c; None where C is no faster than NumPy."""
    is_there = function in (FORWARD if way == "of" else BACKWARD)
    return print_call("loops.c", f"each_{function.name}_{way}", ELEMENTS) if is_there else None


def run_loop(name: str, *arguments: Any) -> Any:
    """Call a function of loops.c."""
    return print_call("loops.c", f"each_{name}", ELEMENTS)(*arguments)


def share(name: str, *arguments: Any) -> Any:
    """`run` what NumPy does as fast: only where threads share it, or where C is wanted."""
    is_shared = arguments[0].size >= 2 * WORTH_A_THREAD and parallel.available() > 1
    return run(name, *arguments) if is_shared or only_c.wanted else NotImplemented


def run(name: str, *arguments: Any) -> Any:
    """Call a function of elementwise.c."""
    return print_call("elementwise.c", name, ELEMENTS)(*arguments)
