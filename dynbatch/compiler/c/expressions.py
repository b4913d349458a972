"""Prints a scalar operator as an expression of C on vectors: see `elementwise.h`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode, Origin
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.unary import variant

HEADERS = ("functions.h", "elementwise.h")
NAMES = {OpCode.SCALE: "multiply", OpCode.SHIFT: "add", OpCode.WHERE: "where"}


@cache
def known_functions() -> frozenset[str]:
    """The functions that C has on vectors."""
    return frozenset(re.findall(r"\b\w+_of\b", " ".join([source.read(name) for name in HEADERS])))


def lacks(op: Op) -> str:
    """The function of an operator of forward, if C has no version of it, or ""."""
    if op.opcode not in ELEMENTWISE:
        return ""
    name = _name(op)
    return "" if f"{name}_of" in known_functions() else name


def has_steps(op: Op) -> bool:
    """Whether an operator with its own kernels has steps in C: see `Operation.steps_in_c`."""
    memories = [x.base.number if x.base.origin is Origin.MEMORY else None for x in op.inputs]
    return op.node.steps_in_c(memories, np.dtype(np.float32)) is not None


def expression(op: Op, xs: Sequence[str]) -> str:
    """The vector that an elementwise operator makes of its operands."""
    if op.opcode is OpCode.COPY:
        return xs[0] if xs else "zeros()"
    if op.opcode is OpCode.PARTIAL:
        return _partial(op, xs)
    return f"{_name(op)}_of({', '.join(_operands(op, xs))})"


def _partial(op: Op, xs: Sequence[str]) -> str:
    """The gradient of one operand, from dy and what the derivative reads."""
    source, (dy, *read) = op.source, xs
    assert source is not None
    name = _name(source)
    if source.opcode is OpCode.WHERE:
        return f"{name}_back_{' ab'[op.position]}({dy}, {read[0]})"
    if source.opcode is OpCode.UNARY:  # where it reads nothing, dy stands in
        return f"{name}_back({', '.join([dy, *_operands(source, [*read, dy][:1])])})"
    if source.opcode is OpCode.WITH_NUMBER:
        operands = _operands(source, [*read, dy][:1])
        return f"{name}_back_{'ab'[source.side]}({dy}, {', '.join(operands)})"
    reads = (source.kernel.reads_a, source.kernel.reads_b)
    operands = [read.pop(0) if is_read else dy for is_read in reads]
    return f"{name}_back_{'ab'[op.position]}({dy}, {', '.join(operands)})"


def _operands(op: Op, xs: Sequence[str]) -> list[str]:
    """An operator's operands, with its numbers."""
    if op.opcode is OpCode.UNARY:
        return [xs[0], *map(literal, variant(op.kernel.name, op.arguments)[1])]
    if op.opcode in (OpCode.SCALE, OpCode.SHIFT, OpCode.WITH_NUMBER):
        number = f"splat({literal(op.number)})"
        return [number, xs[0]] if op.side else [xs[0], number]
    return [*xs]


def _name(op: Op) -> str:
    """The name of an operator's function."""
    if op.opcode is OpCode.UNARY:
        return variant(op.kernel.name, op.arguments)[0]
    return NAMES.get(op.opcode) or str(op.kernel.name)


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(REAL)NAN"
    if math.isinf(number):
        return "(REAL)INFINITY" if number > 0 else "(REAL)-INFINITY"
    return f"(REAL){float(number)!r}"
