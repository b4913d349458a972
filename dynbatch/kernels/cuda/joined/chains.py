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
from zlib import crc32

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.launch import THREADS, TILE, Dimensions
from dynbatch.kernels.cuda.runtime.packing import Arguments
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.cuda.runtime.work import Work

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
        self.written: set[int] = set()

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
        written = self.written | {target}
        widths = {operand.end - operand.address for operand in operands if operand.is_row}
        too_large = len(operands) > MOST_OPERANDS or len(self.steps) == MOST_FUNCTIONS
        if too_large or len(widths) > 1 or _overlap(operands, written):
            return False
        self.operands, self.written = operands, written
        self.steps.append(ChainStep(function, tuple(read), target))
        self.numbers += numbers
        return True

    def launch(self, queue: Queue) -> None:
        steps, rows = tuple(self.steps), tuple([o.is_row for o in self.operands])
        source = kernel(steps, rows)
        (name,) = source.kernels
        queue.kernels(self.dtype).add(source)  # type: ignore[arg-type]
        width = next((o.array.size for o in self.operands if o.is_row), 1)
        args = (*[o.array for o in self.operands], width, self.count, *self.numbers)
        grid = (-(-self.count // TILE),)
        self.work = queue.launch(self.dtype, name, grid, (THREADS,), args)  # type: ignore[arg-type]


def waiting_chain(queue: Queue, count: int, dtype: object) -> ElementChain | None:
    """The last queued item, if it is a chain over so many elements."""
    chain = queue.last_chain
    if not isinstance(chain, ElementChain) or not queue.is_last(chain.work):
        return None
    return chain if chain.count == count and chain.dtype == dtype else None


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
    reads = [operand_of(value, value.size != count) for value in values]
    chain, target = waiting_chain(here, count, out.dtype), operand_of(out)
    if chain is not None and chain.add(function, reads, target, numbers):
        here.take_back()
        chain.launch(here)
        return
    chain = here.last_chain = ElementChain(count, out.dtype)
    chain.add(function, reads, target, numbers)
    kernel, grid, block, args = alone
    chain.work = here.launch(out.dtype, kernel, grid, block, args)


def operand_of(array: Array, is_row: bool = False) -> ChainOperand:
    address = device_address(array)
    return ChainOperand(array, address, address + array.nbytes, is_row)


def _place(operands: list[ChainOperand], operand: ChainOperand) -> int:
    for number, known in enumerate(operands):
        if known[1:] == operand[1:]:
            return number
    operands.append(operand)
    return len(operands) - 1


def _overlap(operands: Sequence[ChainOperand], written: set[int]) -> bool:
    """Whether something is written that another operand shares a part of."""
    return any(
        k != number and shares(operands[number], other)
        for number in written
        for k, other in enumerate(operands)
    )


def shares(one: ChainOperand, other: ChainOperand) -> bool:
    """Whether two arrays have memory in common."""
    return one.address < other.end and other.address < one.end


class ChainText(NamedTuple):
    """The parts of a chain's kernel.

    Attributes:
        name, title: of its functions.
        pointers, numbers: the parameters of its operands p0, p1, … and of its numbers.
        values:  lines that make all values of element i, in column `column`.
        written: the operands that are written.
    """

    name: str
    title: str
    pointers: str
    numbers: str
    values: list[str]
    written: list[int]


@cache
def chain_text(steps: tuple[ChainStep, ...], rows: tuple[bool, ...]) -> ChainText:
    """The parts of the kernel of a chain.

    Args:
        steps: its functions.
        rows:  of each operand, whether it is one row.
    """
    names = [step.function.name for step in steps]
    pattern = repr([(step.reads, step.target) for step in steps]) + repr(rows)
    written = sorted({step.target for step in steps})
    lines, current, numbers = [], dict[int, str](), list[str]()
    for number, step in enumerate(steps):
        for operand in step.reads:
            if operand not in current:
                current[operand] = f"v{operand}"
                lines.append(
                    f"const REAL v{operand} = p{operand}[{'column' if rows[operand] else 'i'}];"
                )
        constants_of = [f"n{number}_{k}" for k in range(step.function.numbers)]
        numbers += constants_of
        lines.append(f"REAL y{number};")
        lines.append(_scope(step, number, constants_of, current))
        current[step.target] = f"y{number}"
    constant = ["" if operand in written else "const " for operand in range(len(rows))]
    return ChainText(
        "_then_".join(names) + f"_{crc32(pattern.encode()):08x}",
        ", then ".join(names),
        ", ".join([f"{word}REAL* p{operand}" for operand, word in enumerate(constant)]),
        "".join([f", REAL {number}" for number in numbers]),
        [*lines, *[f"r{operand}[k] = {current[operand]};" for operand in written]],
        written,
    )


@cache
def kernel(steps: tuple[ChainStep, ...], rows: tuple[bool, ...]) -> CudaSource:
    """The kernel of a chain; see `chain_text`."""
    chain = chain_text(steps, rows)
    text = KERNEL.format(
        title=chain.title,
        name=chain.name,
        pointers=chain.pointers,
        numbers=chain.numbers,
        before="const unsigned before = begin % width;" if any(rows) else "",
        column="const unsigned column = (before + e) % width;" if any(rows) else "",
        results=", ".join([f"r{number}[EACH]" for number in chain.written]),
        body="\n            ".join(chain.values),
        stores="\n            ".join([f"p{number}[i] = r{number}[k];" for number in chain.written]),
    )
    return join(f"{chain.name}.cu", text)


def _scope(step: ChainStep, number: int, own: Sequence[str], current: dict[int, str]) -> str:
    """A function's value, where its variables have their own names."""
    values = zip(step.function.variables, [current[read] for read in step.reads], strict=True)
    pairs = [*values, *[(f"a{k}", name) for k, name in enumerate(own)]]
    constants = " ".join([f"const REAL {name} = {value};" for name, value in pairs])
    return f"{{ {constants} y{number} = {step.function.expression}; }}"


def words(expression: str) -> set[str]:
    """The names in an expression."""
    return set(re.findall(r"\w+", expression))
