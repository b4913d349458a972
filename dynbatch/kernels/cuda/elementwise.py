"""The CUDA version of `kernels/elementwise.py`, generated from expressions.

The kernels of `binary.py` are generated here too, so that all are one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast
from weakref import WeakSet

from dynbatch.backend import Array
from dynbatch.kernels.cuda.joined.chains import (
    ElementFunction,
    SingleLaunch,
    launch_function,
    words,
)
from dynbatch.kernels.cuda.runtime.launch import THREADS, TILE, Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.cuda.walks import over_elements
from dynbatch.kernels.expressions import BINARY, UNARY, WHERE
from dynbatch.kernels.unary import Argument, Function

KERNEL = """
// Block 256, grid count / 1024.
extern "C" __global__ void elementwise_{name}({pointers}REAL* out, long long count{numbers}) {{
    map_elements(out, count, [=](long long i) -> REAL {{
        {reads}
        return {expression};
    }});
}}
"""

KERNEL_WITH_NUMBER = """
// Block 256, grid total / 1024.
extern "C" __global__ void elementwise_{name}({pointers}const REAL* numbers, REAL* out,
        const int* offsets, int length, int count, int width, long long total) {{
    over_elements({{offsets, length, count, width}}, total,
                  [=](int k, long long, int, long long i) {{
                      {reads}
                      out[i] = {expression};
                  }});
}}
"""


def apply(kernel: Function, x: Array, out: Array, *arguments: Argument) -> None:
    function, numbers = kernel.chosen(arguments)
    launch_generated(function.name, (x,), out, numbers)


def apply_backward(
    kernel: Function, dy: Array, saved: Array, out: Array, *arguments: Argument
) -> None:
    function, numbers = kernel.chosen(arguments)
    launch_generated(f"{function.name}_backward", (dy, saved), out, numbers)


def _generate() -> Iterator[str]:
    for name, unary in UNARY.items():
        numbers = sorted(set(re.findall(r"\ba\d\b", f"{unary.forward} {unary.backward}")))
        yield _kernel(name, unary.forward, ["x"], numbers)
        yield _kernel(f"{name}_backward", unary.backward, ["dy", "s"], numbers)
    for name, binary in BINARY.items():
        yield _kernel(name, binary.forward, ["a", "b"])
        for variable, number, backward in (
            ("a", "b", binary.backward_a),
            ("b", "a", binary.backward_b),
        ):
            beside = f"{name}_{variable}_with_number"
            yield _kernel_with_number(beside, binary.forward, [variable], number)
            if backward:
                yield _kernel(f"{name}_backward_{variable}", backward, ["dy", "a", "b"])
                yield _kernel_with_number(f"{beside}_backward", backward, ["dy", variable], number)
    yield _kernel("where", WHERE.forward, ["m", "a", "b"])
    yield _kernel("where_backward_a", WHERE.backward_a, ["dy", "m"])
    yield _kernel("where_backward_b", WHERE.backward_b, ["dy", "m"])


def _kernel(name: str, expression: str, variables: list[str], numbers: Sequence[str] = ()) -> str:
    places = tuple([k for k, name in enumerate(variables) if name in words(expression)])
    read = tuple([variables[read_number] for read_number in places])
    FUNCTIONS[name] = ElementFunction(name, expression, read, len(numbers)), places
    return KERNEL.format(
        name=name,
        pointers=_pointers(variables),
        numbers="".join([f", REAL {number}" for number in numbers]),
        reads=_reads(expression, variables),
        expression=expression,
    )


def _kernel_with_number(name: str, expression: str, variables: list[str], number: str) -> str:
    reads = f"const REAL {number} = numbers[k];" if number in words(expression) else ""
    return KERNEL_WITH_NUMBER.format(
        name=name,
        pointers=_pointers(variables),
        reads=f"{_reads(expression, variables)} {reads}",
        expression=expression,
    )


def _pointers(variables: list[str]) -> str:
    return "".join([f"const REAL* all_{name}, " for name in variables])


def _reads(expression: str, variables: list[str]) -> str:
    read = words(expression)
    return " ".join([f"const REAL {name} = all_{name}[i];" for name in variables if name in read])


FUNCTIONS: dict[str, tuple[ElementFunction, tuple[int, ...]]] = {}
"""The generated functions, and which of their kernel's arrays the variables are."""

SOURCE: CudaSource = join("elementwise.cu", "".join(_generate()))
_knowing: WeakSet[Kernels] = WeakSet()


def launch_generated(
    name: str, values: tuple[Array | None, ...], out: Array, numbers: tuple[float, ...] = ()
) -> None:
    """Launch a generated kernel; values that it does not read are None."""
    _make_known(out)
    args = (*values, out, out.size, *numbers)
    alone = SingleLaunch(f"elementwise_{name}", (-(-out.size // TILE),), (THREADS,), args)
    function, places = FUNCTIONS[name]
    read = [cast(Array, values[number]) for number in places]
    launch_function(function, read, out, alone, numbers)


def launch_with_numbers(
    name: str, values: tuple[Array | None, ...], numbers: Array, offsets: Array, out: Array
) -> None:
    """Launch a generated kernel that reads a number for each segment."""
    _make_known(out)
    over_elements(f"elementwise_{name}", (*values, numbers), offsets, out)


def _make_known(out: Array) -> None:
    kernels = queue().kernels(out.dtype)
    if kernels not in _knowing:
        kernels.add(SOURCE)
        _knowing.add(kernels)
