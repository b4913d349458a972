"""Prints a scalar operator as a statement of CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.kernels.expressions import BINARY, UNARY, WHERE, UnaryExpression


def statement(op: Op, out: str, xs: Sequence[str]) -> str:
    """The statement that declares `out` and computes it from its operands."""
    code, operands = _partial(op, xs) if op.opcode is OpCode.PARTIAL else _function(op, xs)
    constants = ", ".join([f"{name} = {x}" for name, x in operands.items()])
    return (
        f"REAL {out}; {{ const REAL {constants}; {out} = {code}; }}"
        if constants
        else f"const REAL {out} = {code};"
    )


def _function(op: Op, xs: Sequence[str]) -> tuple[str, dict[str, str]]:
    if op.opcode is OpCode.COPY:
        return xs[0] if xs else "0", {}
    if op.opcode is OpCode.WHERE:
        return WHERE.forward, dict(zip("mab", xs, strict=True))
    if op.opcode is OpCode.UNARY:
        unary, arguments = _unary(op)
        return unary.forward, {"x": xs[0]} | arguments
    operands = op.operands(xs, literal(op.number))
    return BINARY[op.kernel.name].forward, dict(zip("ab", operands, strict=True))


def _partial(op: Op, xs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The gradient of one operand, from dy and what the derivative reads."""
    source, (dy, *read) = op.source, xs
    assert source is not None
    side, operands = op.derivative(read, literal(source.number), "")
    names, arguments_of = "ab", {"dy": dy}
    if source.opcode is OpCode.UNARY:
        unary, arguments = _unary(source)
        code, names, arguments_of = unary.backward, "s", arguments_of | arguments
    elif source.opcode is OpCode.WHERE:
        code, names = (WHERE.backward_a, WHERE.backward_b)[side], "m"
    else:
        binary = BINARY[source.kernel.name]
        code = (binary.backward_a, binary.backward_b)[side]
    return code, arguments_of | {name: x for name, x in zip(names, operands, strict=True) if x}


def literal(number: float) -> str:
    if math.isnan(number):
        return "(infinity() - infinity())"
    if math.isinf(number):
        return "infinity()" if number > 0 else "(-infinity())"
    return f"(REAL){float(number)!r}" if number >= 0 else f"((REAL){float(number)!r})"


def _unary(op: Op) -> tuple[UnaryExpression, dict[str, str]]:
    function, numbers = op.kernel.chosen(op.arguments)
    return UNARY[function.name], {f"a{k}": literal(number) for k, number in enumerate(numbers)}
