"""Prints a scalar operator, and the gradient of each input, as statements of CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.compiler.lanes import ColumnRange, ScalarOp
from dynbatch.kernels.binary import WHERE
from dynbatch.kernels.cuda.expressions import BINARY, UNARY, UnaryExpression
from dynbatch.kernels.unary import variant


def forward_statement(op: Op, out: str, names: Sequence[str]) -> str:
    """The statement that declares `out` and computes it from its operands."""
    if op.opcode is OpCode.COPY:
        return f"const REAL {out} = {names[0]};"
    if op.opcode is OpCode.SCALE:
        return f"const REAL {out} = {literal(op.number)} * {names[0]};"
    if op.opcode is OpCode.SHIFT:
        return f"const REAL {out} = {names[0]} + {literal(op.number)};"
    if op.opcode is OpCode.BINARY:
        code = BINARY[op.kernel.name].forward
        return f"REAL {out}; {{ const REAL a = {names[0]}, b = {names[1]}; {out} = {code}; }}"
    if op.opcode is OpCode.WITH_NUMBER:
        code, operands = BINARY[op.kernel.name].forward, _with_number(op, names[0])
        return f"REAL {out}; {{ const REAL {operands}; {out} = {code}; }}"
    if op.opcode is OpCode.WHERE:
        operands = f"m = {names[0]}, a = {names[1]}, b = {names[2]}"
        return f"REAL {out}; {{ const REAL {operands}; {out} = {WHERE.forward}; }}"
    unary, arguments = _unary(op)
    return f"REAL {out}; {{ const REAL x = {names[0]}{arguments}; {out} = {unary.forward}; }}"


def gradient_statement(
    scalar: ScalarOp, position: int, dy: str, value: Callable[[ColumnRange], str]
) -> str:
    """A statement that puts the gradient of one input after `{out}`."""
    op = scalar.op
    if op.opcode in (OpCode.COPY, OpCode.SHIFT):
        return f"{{out}} {dy};"
    if op.opcode is OpCode.SCALE:
        return f"{{out}} {literal(op.number)} * {dy};"
    if op.opcode is OpCode.UNARY:
        unary, arguments = _unary(op)
        reads = op.kernel.reads
        saved = {"input": scalar.inputs[0], "output": scalar.output}.get(reads)
        held = f", s = {value(saved)}" if saved is not None else ""
        return f"{{{{ const REAL dy = {dy}{held}{arguments}; {{out}} {unary.backward}; }}}}"
    if op.opcode is OpCode.WHERE:
        code = (WHERE.backward_a, WHERE.backward_b)[position - 1]
        operands = f"dy = {dy}, m = {value(scalar.inputs[0])}"
        return f"{{{{ const REAL {operands}; {{out}} {code}; }}}}"
    kernel = op.kernel
    if op.opcode is OpCode.WITH_NUMBER:
        x = value(scalar.inputs[0]) if op.node.retains.inputs else ""
        code = (BINARY[kernel.name].backward_a, BINARY[kernel.name].backward_b)[op.side]
        operands = _with_number(op, x)
        return f"{{{{ const REAL dy = {dy}, {operands}; {{out}} {code}; }}}}"
    a = f", a = {value(scalar.inputs[0])}" if kernel.reads_a else ""
    b = f", b = {value(scalar.inputs[1])}" if kernel.reads_b else ""
    binary = BINARY[kernel.name]
    code = (binary.backward_a, binary.backward_b)[position]
    return f"{{{{ const REAL dy = {dy}{a}{b}; {{out}} {code}; }}}}"


def reaches_input(op: Op, position: int) -> bool:
    """Whether a gradient flows from the output to that input."""
    return op.passes_gradient and not (op.opcode is OpCode.WHERE and position == 0)


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(infinity() - infinity())"
    if math.isinf(number):
        return "infinity()" if number > 0 else "(-infinity())"
    return f"(REAL){float(number)!r}" if number >= 0 else f"((REAL){float(number)!r})"


def _with_number(op: Op, x: str) -> str:
    """The operands of a function of a value and a number; without the value if x is empty."""
    own, other = "ba" if op.side else "ab"
    value = f"{own} = {x}, " if x else ""
    return f"{value}{other} = {literal(op.number)}"


def _unary(op: Op) -> tuple[UnaryExpression, str]:
    key, numbers = variant(op.kernel.name, op.arguments)
    arguments = "".join([f", a{k} = {literal(v)}" for k, v in enumerate(numbers)])
    return UNARY[key], arguments
