"""Checks a program between two passes: each must leave a program that can run."""

from __future__ import annotations

from dynbatch.compiler.ir import ALIKE, Op, OpCode, Origin
from dynbatch.compiler.program import Program


def validate(program: Program, after: str) -> None:
    """Check that each value is made once, before it is read, in all its columns.

    Args:
        after: the pass that made the program what it is.

    Raises:
        AssertionError: a pass has a bug.
    """
    ops = program.every_op()
    outputs = {id(value) for op in ops for value in op.outputs}
    made: set[int] = set()
    for op in ops:
        for x in op.inputs:
            is_within = 0 <= x.column and x.column + x.width <= x.base.width
            is_made = id(x.base) in made or id(x.base) not in outputs
            _check(is_within, after, op, "reads beyond a value")
            _check(is_made, after, op, "reads what is not made yet")
        for value in op.outputs:
            _check(value.base is value, after, op, "makes a view")
            _check(value.origin is Origin.OPERATOR, after, op, "makes an input")
            _check(id(value) not in made, after, op, "makes a value again")
            made.add(id(value))
        _check(_widths_fit(op), after, op, "has operands of the wrong width")
    for value in program.results():
        is_input = value.base.origin is not Origin.OPERATOR
        assert is_input or id(value.base) in made, f"{after}: a result is not made"


def _check(holds: bool, after: str, op: Op, problem: str) -> None:
    assert holds, f"{after}: {op.opcode.name} {problem}"


def _widths_fit(op: Op) -> bool:
    if op.opcode in ALIKE:
        return {x.width for x in op.inputs} == {op.output.width}
    if op.opcode is OpCode.CONTRACT:
        return op.nest.widths() == [x.width for x in (*op.inputs, op.output)]
    if op.opcode is OpCode.COPY:
        return sum([x.width for x in (*op.inputs, *op.holes())]) == op.output.width
    if op.is_linear:
        pieces = sorted(op.pieces, key=lambda piece: piece.column)
        ends = [0, *[piece.column + piece.width for piece in pieces]]
        is_tiled = [piece.column for piece in pieces] == ends[:-1]
        return is_tiled and ends[-1] == op.output.width
    if op.opcode is OpCode.LINEAR_GRADIENT:
        assert op.source is not None
        widths = (op.inputs[0].width, op.output.width)
        return widths == (op.source.output.width, op.source.inputs[0].width)
    return True
