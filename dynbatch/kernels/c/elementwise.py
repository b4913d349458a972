"""`kernels.elementwise` in C: what is one fast call of NumPy stays there."""

from __future__ import annotations

import re
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.sharing import share_rows
from dynbatch.kernels.unary import Argument, UnaryFunction, variant

_library = Library("elementwise.c")


def numbers_in(name: str, ending: str) -> dict[str, int]:
    """The functions that a C source tells apart by number, of those that end so."""
    cases = re.findall(rf"\bCASE\((\d+), (\w+)_{ending}\(", source.read(name))
    return {function: int(number) for number, function in cases}


FORWARD = numbers_in(_library.name, "of")
BACKWARD = numbers_in(_library.name, "back")


def apply(kernel: type[UnaryFunction], x: Array, out: Array, *arguments: Argument) -> Any:
    name, numbers = variant(kernel.name, arguments)
    if name not in FORWARD:
        return NotImplemented
    return _run("apply", FORWARD[name], numbers, x, out)


def apply_backward(
    kernel: type[UnaryFunction], dy: Array, saved: Array, out: Array, *arguments: Argument
) -> Any:
    name, numbers = variant(kernel.name, arguments)
    if name not in BACKWARD:
        return NotImplemented
    return _run("apply_backward", BACKWARD[name], numbers, dy, saved, out)


def _run(name: str, function: int, numbers: tuple[float, ...], *arrays: Array) -> Any:
    functions = _library.functions(arrays[0].dtype)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    places = [address(array) for array in arrays]
    rest = (function, *places, *numbers, 0, 0)[: len(arrays) + 3]
    share_rows(getattr(functions, name), arrays[0].size, 1, *rest)
    return None
