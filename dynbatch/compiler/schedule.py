"""Arranges a backward program: what runs ahead of many steps, in a step, and last in it.

Ahead comes what follows from saved values alone. It takes a row for each token, so a slope moves
there only as a part of a product, or where the packed gradient that it makes can take its place.
Last comes what only the step before needs: the first step from zeros leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op, OpCode, Origin, Value

GRADIENTS = (Origin.EXPORT_GRADIENT, Origin.LEFT_GRADIENT)


def schedule(program: BackwardProgram) -> None:
    """Move operators of a step to `ahead` and `carry`, and drop those that nothing reads."""
    for_rows = _needed(program.ops, program.packed_results())
    for_state = _needed(program.ops, program.following)
    ahead = _ahead(program)
    ops = program.ops
    program.ahead = [op for op in ops if id(op) in ahead and id(op) in for_rows | for_state]
    program.ops = [op for op in ops if id(op) in for_rows - ahead]
    program.carry = [op for op in ops if id(op) in for_state - for_rows - ahead]


def _needed(ops: Sequence[Op], results: Sequence[Value]) -> set[int]:
    """The operators that results depend on, and those that pass gradients to their node types."""
    wanted = {id(value.base) for value in results}
    needed: set[int] = set()
    for op in reversed(ops):
        made = {id(value) for value in op.outputs}
        if made & wanted or op.opcode is OpCode.GENERIC_GRADIENT:
            needed.add(id(op))
            wanted.update([id(x.base) for x in op.inputs])
    return needed


def _ahead(program: BackwardProgram) -> set[int]:
    """The operators that can run ahead, as far as that pays."""
    makers = {id(value): op for op in program.ops for value in op.outputs}
    free: list[Op] = []
    gradients = {id(value) for op in program.ops for value in op.outputs}
    for op in program.ops:
        is_free = op.opcode is OpCode.SLOPE or op.is_multiply
        for x in op.inputs:
            is_free &= id(x.base) not in gradients and x.base.origin not in GRADIENTS
        if is_free:
            free.append(op)
            gradients.remove(id(op.output))
    packed = {id(value.base) for value in program.packed_results()}
    for op in [makers[base] for base in packed if base in makers]:
        packed |= {id(x.base) for x in op.inputs if op.opcode is OpCode.COPY}
    ahead: set[int] = set()
    for op in reversed(free):
        readers = program.readers(op.output)
        if op.is_multiply or any([id(r) in ahead or id(r.output) in packed for r in readers]):
            ahead.add(id(op))
    return ahead
