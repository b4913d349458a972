"""A norm whose rows the functions queued right before it have written, in one kernel with them.

A bias, the residual sum that it is a term of and the norm behind both are one launch: the row is
made and summed in one pass, and read again by the threads that made it.
"""

from __future__ import annotations

from functools import cache

from dynbatch.backend import Array
from dynbatch.kernels.cuda.joined.chains import (
    ChainOperand,
    ChainStep,
    ElementChain,
    chain_text,
    operand_of,
    shares,
    waiting_chain,
)
from dynbatch.kernels.cuda.runtime.launch import Dimensions
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join

KERNEL = """#include "norms.cuh"
// {title}, then layer_norm of operand {x}: grid and block of `over_rows`.
extern "C" __global__ void {name}({pointers}, const REAL* weight, const REAL* bias, REAL eps,
    REAL* out, REAL* mean, REAL* rstd, REAL* kept, int rows, int width{numbers}) {{
    over_rows(rows, width, [&](const Team& team) {{
        const long long begin = team.row * width;
        REAL total = 0;
        for (int first = team.first; first < width; first += EACH * team.step) {{
            REAL {results};
#pragma unroll
            for (int k = 0; k < EACH; ++k) {{
                const int column = first + k * team.step;
                const long long i = begin + column;
                if (column < width) {{
                    {body}
                }}
            }}
#pragma unroll
            for (int k = 0; k < EACH; ++k) {{
                const int column = first + k * team.step;
                const long long i = begin + column;
                if (column < width) {{
                    {stores}
                    total += r{x}[k];
                }}
            }}
        }}
        normalize_row(team, p{x}, total, weight, bias, eps, out, mean, rstd, kept, width);
    }});
}}
"""


def launch_after_chain(
    x: Array, parameters: tuple[Array | None, Array | None, float],
    outputs: tuple[Array | None, ...], grid: Dimensions, block: Dimensions,
) -> bool:  # fmt: skip
    """Queue the norm with the chain before it; False, and nothing done, where that cannot be.

    Args:
        x:          (N, D).
        parameters: weight, bias and eps.
        outputs:    out, mean, rstd and the copy of x.
    """
    here = queue()
    chain = waiting_chain(here, x.size, x.dtype)
    if chain is None:
        return False
    number = _place_of(chain, operand_of(x))
    rows, width = x.shape
    weight, bias, eps = parameters
    is_bearable = all(
        [
            *[o.array.size == width for o in chain.operands if o.is_row],
            *[_is_read_alone(chain, array) for array in (weight, bias) if array is not None],
            *[_is_written_alone(chain, array) for array in outputs if array is not None],
        ]
    )
    if number is None or not is_bearable:
        return False
    source = kernel(tuple(chain.steps), tuple([o.is_row for o in chain.operands]), number)
    (name,) = source.kernels
    here.kernels(x.dtype).add(source)
    arrays = [operand.array for operand in chain.operands]
    args = (*arrays, weight, bias, eps, *outputs, rows, width, *chain.numbers)
    here.take_back()
    here.launch(x.dtype, name, grid, block, args)
    return True


def _place_of(chain: ElementChain, x: ChainOperand) -> int | None:
    """The number of the operand that is x, if the chain writes it."""
    for number in chain.written:
        if chain.operands[number][1:] == x[1:]:
            return number
    return None


def _is_read_alone(chain: ElementChain, array: Array) -> bool:
    operand = operand_of(array)
    return not any([shares(operand, chain.operands[number]) for number in chain.written])


def _is_written_alone(chain: ElementChain, array: Array) -> bool:
    """Whether an array shares nothing with what the chain reads and writes, or is the very same.

    A thread is done with an element of the chain before it writes the same one of the norm.
    """
    operand = operand_of(array)
    return not any(
        [shares(operand, other) and operand[1:] != other[1:] for other in chain.operands]
    )


@cache
def kernel(steps: tuple[ChainStep, ...], rows: tuple[bool, ...], x: int) -> CudaSource:
    """The kernel of a chain and a norm of its operand x."""
    chain = chain_text(steps, rows)
    name = f"{chain.name}_{x}_then_layer_norm"
    text = KERNEL.format(
        title=chain.title,
        name=name,
        x=x,
        pointers=chain.pointers,
        numbers=chain.numbers,
        results=", ".join([f"r{number}[EACH]" for number in chain.written]),
        body="\n                    ".join(chain.values),
        stores="\n                    ".join(
            [f"p{number}[i] = r{number}[k];" for number in chain.written]
        ),
    )
    return join(f"{name}.cu", text)
