"""What backward can make for many steps at once: derivatives, which follow from saved values alone.

The gradient through y = f(x), z = y ⊙ u is dx = dz ⊙ (u ⊙ f'(x)). The factor in brackets needs no
gradient, so it is made for a block of steps ahead of them, and of the whole chain one product is
left in a step: for the five functions of an LSTM 5 kernels rather than 10.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.compiler.program import Op, Program, Value, readers


@dataclass(frozen=True)
class Link:
    """Some columns of a function's output, and what multiplies them.

    part:    those columns.
    product: the operator that is their only reader; the function itself if there is no such one.
    other:   its other operand, if any.
    """

    part: Value
    product: Op
    other: Value | None = None


def has_slope(op: Op) -> bool:
    """Whether backward of `op` is a product with something that saved values give."""
    return (
        op.kind == "unary" and op.node.kernel.slope is not None and op.inputs[0].base.origin == "op"
    )


def links(program: Program, op: Op) -> list[Link]:
    """The products that read the output of `op`, if nothing else does and each column is read once.

    Then the output's own gradient need not be made.
    """
    if not has_slope(op) or id(op.output) in program.leaving():
        return []
    found: list[Link] = []
    for reader in readers(program, op.output):
        read = [x for x in reader.inputs if x.base is op.output]
        others = [x for x in reader.inputs if x.base is not op.output]
        if type(reader.node).__name__ != "Multiply" or reader.kind != "binary" or len(read) != 1:
            return []
        found.append(Link(read[0], reader, others[0]))
    found.sort(key=lambda link: link.part.column)
    ends = [0, *[link.part.column + link.part.width for link in found]]
    tiled = [link.part.column for link in found] == ends[:-1] and ends[-1] == op.output.width
    return found if tiled and all(map(_is_saved, found)) else []


def _is_saved(link: Link) -> bool:
    return link.other is not None and link.other.base.origin != "memory"
