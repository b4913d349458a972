"""Fusion: turns narrow linear maps of one input into a wide one.

A cell spelt out gate by gate thus has one product for all gates, like a hand-fused cell, and its
weights' gradients come from one product too. Elementwise operators stay as they are: compiled code
cuts all of them into lanes (see `lanes`), however wide they were written.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.compiler.lowering import LoopProgram


def fuse(program: LoopProgram) -> None:
    """Merge linear maps of one input, of the streams' and of the loop's."""
    program.ahead = _merge(program, program.ahead)
    program.ops = _merge(program, program.ops)


def _merge(program: LoopProgram, ops: Sequence[Op]) -> list[Op]:
    """The operators, with one linear map in the place of the first that read the same columns."""
    groups: dict[tuple[int, int, int], list[Op]] = {}
    for op in ops:
        if op.is_linear:
            (x,) = op.inputs
            groups.setdefault((id(x.base), x.column, x.width), []).append(op)
    merged: dict[int, Op | None] = {}
    for group in groups.values():
        if len(group) > 1:
            merged |= {id(op): None for op in group}
            merged[id(group[0])] = _wide(program, group)
    return [new for op in ops if (new := merged.get(id(op), op)) is not None]


def _wide(program: LoopProgram, group: Sequence[Op]) -> Op:
    """One linear map for several, whose outputs become columns of its own."""
    output = program.value(sum([op.output.width for op in group]))
    wide = Op(OpCode.LINEAR, group[0].inputs, output, group[0].node)
    column = 0
    for op in group:
        (piece,) = op.pieces
        piece.column = column
        wide.pieces.append(piece)
        column += op.output.width
        program.move(op.output, output, piece.column)
    return wide
