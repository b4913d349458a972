"""`kernels.elementwise` in C: what is one fast call of NumPy stays there."""

from __future__ import annotations

import re
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import WORTH_A_THREAD, share_rows
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import only_c
from dynbatch.kernels.unary import Argument, UnaryFunction, variant

_library = Library("elementwise.c")


def numbers_in(name: str, ending: str) -> dict[str, int]:
    """The functions that a C source tells apart by number, of those that end so."""
    cases = re.findall(rf"\bCASE\((\d+), (\w+)_{ending}\(", source.read(name))
    return {function: int(number) for number, function in cases}


FORWARD = numbers_in(_library.name, "of")
BACKWARD = numbers_in(_library.name, "back")


# The exponents whose powers and derivatives are products: NumPy's other powers are as fast.
PRODUCTS = (2, 3, -1)


def apply(kernel: type[UnaryFunction], x: Array, out: Array, *arguments: Argument) -> Any:
    return _apply("apply", FORWARD, kernel, arguments, x, out)


def apply_backward(
    kernel: type[UnaryFunction], dy: Array, saved: Array, out: Array, *arguments: Argument
) -> Any:
    return _apply("apply_backward", BACKWARD, kernel, arguments, dy, saved, out)


def _apply(
    name: str, known: dict[str, int], kernel: type[UnaryFunction], arguments: tuple[Argument, ...],
    *arrays: Array,
) -> Any:  # fmt: skip
    function, numbers = variant(kernel.name, arguments)
    if function not in known or (function == "power" and numbers[0] not in PRODUCTS):
        return NotImplemented
    return run(name, arrays, (known[function],), (*numbers, 0, 0)[:2])


def share(name: str, arrays: tuple[Array, ...], after: tuple[float, ...] = ()) -> Any:
    """`run` what NumPy does as fast: only where threads share it, or where C is wanted."""
    is_shared = arrays[0].size >= 2 * WORTH_A_THREAD and parallel.available() > 1
    if not (is_shared or only_c.wanted):
        return NotImplemented
    return run(name, arrays, (), after)


def run(
    name: str, arrays: tuple[Array, ...], before: tuple[int, ...] = (),
    after: tuple[float, ...] = (),
) -> Any:  # fmt: skip
    """Call a function of elementwise.c on several threads, with arguments before and after arrays.

    The last array is the output.
    """
    functions = _library.functions(arrays[0].dtype)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    places = [address(array) for array in arrays]
    share_rows(getattr(functions, name), arrays[0].size, 1, *before, *places, *after)
    return None
