"""`kernels.elementwise` in C: what is one fast call of NumPy stays there."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.printed import BACKWARD, FORWARD
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import WORTH_A_THREAD, share_rows
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import only_c
from dynbatch.kernels.unary import Argument, Function, arithmetic

_library, _loops = Library("elementwise.c"), Library("loops.c")

# The exponents whose powers and derivatives are products: NumPy's other powers are as fast.
PRODUCTS = (2, 3, -1)


def apply(kernel: Function, x: Array, out: Array, *arguments: Argument) -> Any:
    return _apply("of", FORWARD, kernel, arguments, x, out)


def apply_backward(
    kernel: Function, dy: Array, saved: Array, out: Array, *arguments: Argument
) -> Any:
    return _apply("back", BACKWARD, kernel, arguments, dy, saved, out)


def _apply(
    way: str, known: Container[Function], kernel: Function, arguments: tuple[Argument, ...],
    *arrays: Array,
) -> Any:  # fmt: skip
    function, numbers = kernel.chosen(arguments)
    if function not in known or (function is arithmetic.power and numbers[0] not in PRODUCTS):
        return NotImplemented
    return run_loop(f"{function.name}_{way}", arrays, numbers)


def share(name: str, arrays: tuple[Array, ...], after: tuple[float, ...] = ()) -> Any:
    """`run` what NumPy does as fast: only where threads share it, or where C is wanted."""
    is_shared = arrays[0].size >= 2 * WORTH_A_THREAD and parallel.available() > 1
    if not (is_shared or only_c.wanted):
        return NotImplemented
    return run(name, arrays, (), after)


def run_loop(name: str, arrays: tuple[Array, ...], after: tuple[float, ...] = ()) -> Any:
    """Call a function of loops.c, as `run`."""
    return run(f"each_{name}", arrays, (), after, _loops)


def run(
    name: str, arrays: tuple[Array, ...], before: tuple[int, ...] = (),
    after: tuple[float, ...] = (), library: Library = _library,
) -> Any:  # fmt: skip
    """Call a function of elementwise.c on several threads, with arguments before and after arrays.

    The last array is the output.
    """
    functions = library.functions(arrays[0].dtype)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    places = [address(array) for array in arrays]
    share_rows(getattr(functions, name), arrays[0].size, 1, *before, *places, *after)
    return None
