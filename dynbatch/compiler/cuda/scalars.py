"""Prints a scalar operator as a statement of CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.kernels.binary import WHERE
from dynbatch.kernels.cuda.expressions import BINARY, UNARY, UnaryExpression
from dynbatch.kernels.unary import variant


def statement(op: Op, out: str, xs: Sequence[str]) -> str:
    """The statement that declares `out` and computes it from its operands."""
    code, operands = _partial(op, xs) if op.opcode is OpCode.PARTIAL else _function(op, xs)
    given = ", ".join([f"{name} = {x}" for name, x in operands.items()])
    return (
        f"REAL {out}; {{ const REAL {given}; {out} = {code}; }}"
        if given
        else f"const REAL {out} = {code};"
    )


def _function(op: Op, xs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """An operator as an expression, and the variables that are in it."""
    if op.opcode is OpCode.COPY:
        return xs[0] if xs else "0", {}
    if op.opcode is OpCode.SCALE:
        return f"{literal(op.number)} * {xs[0]}", {}
    if op.opcode is OpCode.SHIFT:
        return f"{xs[0]} + {literal(op.number)}", {}
    if op.opcode is OpCode.WHERE:
        return WHERE.forward, dict(zip("mab", xs, strict=True))
    if op.opcode is OpCode.BINARY:
        return BINARY[op.kernel.name].forward, dict(zip("ab", xs, strict=True))
    if op.opcode is OpCode.WITH_NUMBER:
        return BINARY[op.kernel.name].forward, _with_number(op, xs)
    unary, arguments = _unary(op)
    return unary.forward, {"x": xs[0]} | arguments


def _partial(op: Op, xs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The gradient of one operand, from dy and what the derivative reads."""
    source, (dy, *read) = op.source, xs
    assert source is not None
    given = {"dy": dy}
    if source.opcode is OpCode.WHERE:
        return (WHERE.backward_a, WHERE.backward_b)[op.position - 1], given | {"m": read[0]}
    if source.opcode is OpCode.UNARY:
        unary, arguments = _unary(source)
        return unary.backward, given | dict(zip("s", read, strict=False)) | arguments
    binary, side = BINARY[source.kernel.name], op.position
    if source.opcode is OpCode.WITH_NUMBER:
        given |= _with_number(source, read)
        side = source.side
    else:
        reads = zip("ab", (source.kernel.reads_a, source.kernel.reads_b), strict=True)
        given |= dict(zip([name for name, is_read in reads if is_read], read, strict=True))
    return (binary.backward_a, binary.backward_b)[side], given


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(infinity() - infinity())"
    if math.isinf(number):
        return "infinity()" if number > 0 else "(-infinity())"
    return f"(REAL){float(number)!r}" if number >= 0 else f"((REAL){float(number)!r})"


def _with_number(op: Op, xs: Sequence[str]) -> dict[str, str]:
    """The operands of a function of a value and a number; perhaps without the value."""
    own, other = "ba" if op.side else "ab"
    return dict(zip(own, xs, strict=False)) | {other: literal(op.number)}


def _unary(op: Op) -> tuple[UnaryExpression, dict[str, str]]:
    key, numbers = variant(op.kernel.name, op.arguments)
    return UNARY[key], {f"a{k}": literal(number) for k, number in enumerate(numbers)}
