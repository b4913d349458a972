"""Functions of the elements of arrays that follow one another, in one kernel.

Where such a function is queued right behind another one of as many elements, both become one
launch: a bias and the activation behind it, a bias and the sum that it is a term of. What one has
written the next finds in a register. Every array is written as if they ran apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary
from zlib import crc32

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.launch import Dimensions
from dynbatch.kernels.cuda.runtime.packing import Arguments
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.cuda.runtime.work import Work

THREADS = 256
TILE = 4 * THREADS  # elements of a block: EACH of common.cuh for every thread
MOST_FUNCTIONS = 4  # of a chain, so that registers suffice
MOST_OPERANDS = 6

KERNEL = """
// {title}: block 256, grid count / 1024.
extern "C" __global__ void {name}({pointers}, unsigned width, long long count{numbers}) {{
    const long long begin = (long long)blockIdx.x * blockDim.x * EACH;
    {before}
    REAL {results};
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        const unsigned e = k * blockDim.x + threadIdx.x;
        const long long i = begin + e;
        if (i < count) {{
            {column}
            {body}
        }}
    }}
#pragma unroll
    for (int k = 0; k < EACH; ++k) {{
        const long long i = begin + k * blockDim.x + threadIdx.x;
        if (i < count) {{
            {stores}
        }}
    }}
}}
"""


class ChainOperand(NamedTuple):
    """An array of a chain; `is_row` where it is one row that all rows share."""

    array: Array
    address: int
    end: int
    is_row: bool


class ElementFunction(NamedTuple):
    """out = expression, for every element.

    Args:
        name:       of the function.
        expression: over `variables`, and numbers a0, a1, …
        variables:  its variables.
        numbers:    how many numbers it takes.
    """

    name: str
    expression: str
    variables: tuple[str, ...]
    numbers: int = 0


class ChainStep(NamedTuple):
    """A function in a chain: which operands its variables are, and which one it writes."""

    function: ElementFunction
    reads: tuple[int, ...]
    target: int


class SingleLaunch(NamedTuple):
    """The launch of a function by itself; see `Queue.launch`."""

    kernel: str
    grid: Dimensions
    block: Dimensions
    args: Arguments


class ElementChain:
    """Functions that were queued one after the other, as the last launch of a queue."""

    def __init__(self, count: int, dtype: object) -> None:
        self.work: Work | None = None
        self.count = count
        self.dtype = dtype
        self.steps: list[ChainStep] = []
        self.operands: list[ChainOperand] = []
        self.numbers: list[float] = []
        self._written: set[int] = set()

    def add(
        self,
        function: ElementFunction,
        reads: Sequence[ChainOperand],
        out: ChainOperand,
        numbers: Sequence[float],
    ) -> bool:
        """Take in one more function, unless it reads or writes a part of what another one does."""
        operands = list(self.operands)
        places = [_place(operands, operand) for operand in (*reads, out)]
        *read, target = places
        written = self._written | {target}
        widths = {operand.end - operand.address for operand in operands if operand.is_row}
        too_large = len(operands) > MOST_OPERANDS or len(self.steps) == MOST_FUNCTIONS
        if too_large or len(widths) > 1 or _overlap(operands, written):
            return False
        self.operands, self._written = operands, written
        self.steps.append(ChainStep(function, tuple(read), target))
        self.numbers += numbers
        return True

    def launch(self, queue: Queue) -> None:
        """Queue all functions as one kernel."""
        steps, rows = tuple(self.steps), tuple([o.is_row for o in self.operands])
        source = kernel(steps, rows)
        (name,) = source.kernels
        queue.kernels(self.dtype).add(source)  # type: ignore[arg-type]
        width = next((o.array.size for o in self.operands if o.is_row), 1)
        args = (*[o.array for o in self.operands], width, self.count, *self.numbers)
        grid = (-(-self.count // TILE),)
        self.work = queue.launch(self.dtype, name, grid, (THREADS,), args)  # type: ignore[arg-type]


_last: WeakKeyDictionary[Queue, ElementChain] = WeakKeyDictionary()


def launch_function(
    function: ElementFunction,
    values: Sequence[Array],
    out: Array,
    alone: SingleLaunch,
    numbers: Sequence[float] = (),
) -> None:
    """Queue out = function(values), with the function before it where that is possible.

    Args:
        values: of the function's variables: of out's size, or one row of it.
        alone:  its launch where it stands alone.
    """
    here, count = queue(), out.size
    if not count:
        return
    reads = [_operand(value, value.size != count) for value in values]
    chain, target = _last.get(here), _operand(out, False)
    follows = (
        chain is not None
        and chain.count == count
        and chain.dtype == out.dtype
        and here.is_last(chain.work)
        and chain.add(function, reads, target, numbers)
    )
    if follows and chain is not None:
        here.take_back()
        chain.launch(here)
        return
    chain = _last[here] = ElementChain(count, out.dtype)
    chain.add(function, reads, target, numbers)
    kernel, grid, block, args = alone
    chain.work = here.launch(out.dtype, kernel, grid, block, args)


def _operand(array: Array, is_row: bool) -> ChainOperand:
    address = device_address(array)
    return ChainOperand(array, address, address + array.nbytes, is_row)


def _place(operands: list[ChainOperand], operand: ChainOperand) -> int:
    """The number of an operand, which is added where it is new."""
    for number, known in enumerate(operands):
        if known[1:] == operand[1:]:
            return number
    operands.append(operand)
    return len(operands) - 1


def _overlap(operands: Sequence[ChainOperand], written: set[int]) -> bool:
    """Whether something is written that another operand shares a part of."""
    return any(
        one.address < other.end and other.address < one.end
        for number in written
        for one in (operands[number],)
        for place, other in enumerate(operands)
        if place != number
    )


@cache
def kernel(steps: tuple[ChainStep, ...], rows: tuple[bool, ...]) -> CudaSource:
    """The kernel of a chain.

    Args:
        steps: its functions.
        rows:  of each operand, whether it is one row.
    """
    names = [step.function.name for step in steps]
    pattern = repr([(step.reads, step.target) for step in steps]) + repr(rows)
    name = "_then_".join(names) + f"_{crc32(pattern.encode()):08x}"
    written = {step.target for step in steps}
    lines, current, numbers = [], dict[int, str](), list[str]()
    for number, step in enumerate(steps):
        for place in step.reads:
            if place not in current:
                current[place] = f"v{place}"
                lines.append(f"const REAL v{place} = p{place}[{'column' if rows[place] else 'i'}];")
        own = [f"n{number}_{k}" for k in range(step.function.numbers)]
        numbers += own
        lines.append(f"REAL y{number};")
        lines.append(_scope(step, number, own, current))
        current[step.target] = f"y{number}"
    order = sorted(written)
    lines += [f"r{place}[k] = {current[place]};" for place in order]
    text = KERNEL.format(
        title=", then ".join(names),
        name=name,
        pointers=", ".join(
            [f"{'' if k in written else 'const '}REAL* p{k}" for k in range(len(rows))]
        ),
        numbers="".join([f", REAL {number}" for number in numbers]),
        before="const unsigned before = begin % width;" if any(rows) else "",
        column="const unsigned column = (before + e) % width;" if any(rows) else "",
        results=", ".join([f"r{place}[EACH]" for place in order]),
        body="\n            ".join(lines),
        stores="\n            ".join([f"p{place}[i] = r{place}[k];" for place in order]),
    )
    return join(f"{name}.cu", text)


def _scope(step: ChainStep, number: int, own: Sequence[str], current: dict[int, str]) -> str:
    """A function's value, where its variables have their own names."""
    values = zip(step.function.variables, [current[place] for place in step.reads], strict=True)
    given = [*values, *[(f"a{k}", name) for k, name in enumerate(own)]]
    constants = " ".join([f"const REAL {name} = {value};" for name, value in given])
    return f"{{ {constants} y{number} = {step.function.expression}; }}"


def words(expression: str) -> set[str]:
    """The names in an expression."""
    return set(re.findall(r"\w+", expression))
