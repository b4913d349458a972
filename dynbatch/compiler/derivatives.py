"""Derivatives that backward computes for many steps at once, from saved values alone.

The gradient through y = f(x), z = y ⊙ u is dx = dz ⊙ (u ⊙ f'(x)). The factor in brackets needs no
gradient, so it is made for a block of steps ahead of them, and of the whole chain one product is
left in a step: for the five functions of an LSTM 5 kernels rather than 10.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram


@dataclass(frozen=True)
class Link:
    """Some columns of a function's output, and their multiplication.

    part:    those columns.
    product: the operator that is their only reader; the function itself if there is no such one.
    other:   its other operand, if any.
    """

    part: Value
    product: Op
    other: Value | None = None


def has_slope(op: Op) -> bool:
    """Whether backward of `op` is a product with a factor computed from saved values."""
    if op.opcode is not OpCode.UNARY or op.node.kernel.slope is None:
        return False
    return op.inputs[0].base.origin is Origin.OPERATOR


def links(program: LoopProgram, op: Op) -> list[Link]:
    """The products that read the output of `op`, if nothing else does and each column is read once.

    Then the output's own gradient is not needed.
    """
    if not has_slope(op) or id(op.output) in program.leaving():
        return []
    products: list[Link] = []
    for reader in program.readers(op.output):
        read = [x for x in reader.inputs if x.base is op.output]
        others = [x for x in reader.inputs if x.base is not op.output]
        if not reader.is_multiply or len(read) != 1:
            return []
        products.append(Link(read[0], reader, others[0]))
    products.sort(key=lambda link: link.part.column)
    ends = [0, *[link.part.column + link.part.width for link in products]]
    is_tiled = [link.part.column for link in products] == ends[:-1] and ends[-1] == op.output.width
    return products if is_tiled and all([_is_saved(link) for link in products]) else []


def _is_saved(link: Link) -> bool:
    return link.other is not None and link.other.base.origin is not Origin.MEMORY
