"""Elementwise functions: the twins of `kernels/elementwise.py`, generated from `expressions.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

from dynbatch.kernels.cuda.expressions import BINARY, UNARY, variant
from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.cuda.queue import queue
from dynbatch.kernels.cuda.source import Source, join
from dynbatch.kernels.elementwise import Binary, Unary

THREADS = 256
TILE = 4 * THREADS  # elements of a block: EACH of common.cuh for every thread

KERNEL = """
// Block 256, grid count / 1024.
extern "C" __global__ void elementwise_{name}({pointers}REAL* out, long long count{numbers}) {{
    map_elements(out, count, [=](long long i) -> REAL {{
        {reads}
        return {expression};
    }});
}}
"""


def apply(kernel: Unary, x: Any, out: Any, *arguments: Any) -> None:
    """out = f(x; arguments)."""
    name, numbers = variant(kernel.name, arguments)
    _launch(name, (x,), out, numbers)


def apply_backward(kernel: Unary, dy: Any, saved: Any, out: Any, *arguments: Any) -> None:
    """out = dy ⊙ f'(saved; arguments)."""
    name, numbers = variant(kernel.name, arguments)
    _launch(f"{name}_backward", (dy, saved), out, numbers)


def combine(kernel: Binary, a: Any, b: Any, out: Any) -> None:
    """out = f(a, b)."""
    _launch(kernel.name, (a, b), out)


def combine_backward(kernel: Binary, dy: Any, a: Any, b: Any, out: Any, side: int) -> None:
    """out = dy ⊙ ∂f/∂a (side 0) or dy ⊙ ∂f/∂b (side 1)."""
    _launch(f"{kernel.name}_backward_{'ab'[side]}", (dy, a, b), out)


def _generate() -> Iterator[str]:
    for name, one in UNARY.items():
        numbers = sorted(set(re.findall(r"\ba\d\b", f"{one.forward} {one.backward}")))
        yield _kernel(name, one.forward, ["x"], numbers)
        yield _kernel(f"{name}_backward", one.backward, ["dy", "s"], numbers)
    for name, two in BINARY.items():
        yield _kernel(name, two.forward, ["a", "b"])
        yield _kernel(f"{name}_backward_a", two.backward_a, ["dy", "a", "b"])
        yield _kernel(f"{name}_backward_b", two.backward_b, ["dy", "a", "b"])


def _kernel(name: str, expression: str, variables: list[str], numbers: Sequence[str] = ()) -> str:
    """A kernel over one array for each variable; it reads those that the expression needs."""
    needed = re.findall(r"\w+", expression)
    return KERNEL.format(
        name=name,
        pointers="".join([f"const REAL* all_{one}, " for one in variables]),
        numbers="".join([f", REAL {one}" for one in numbers]),
        reads=" ".join([f"const REAL {one} = all_{one}[i];" for one in variables if one in needed]),
        expression=expression,
    )


SOURCE: Source = join("elementwise.cu", "".join(_generate()))
_knowing: WeakSet[Kernels] = WeakSet()


def _launch(name: str, values: tuple[Any, ...], out: Any, numbers: tuple[Any, ...] = ()) -> None:
    """Launch a generated kernel; None among the values is one that it does not read."""
    work = queue()
    kernels = work.kernels(out.dtype)
    if kernels not in _knowing:
        kernels.add(SOURCE)
        _knowing.add(kernels)
    args = (*values, out, out.size, *numbers)
    work.launch(out.dtype, f"elementwise_{name}", (-(-out.size // TILE),), (THREADS,), args)
