"""Prints a scalar operator as an expression of C on vectors: see `kernels/c/elementwise.h`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

from dynbatch.compiler.ir import Op, OpCode
from dynbatch.compiler.lanes import FUSED
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.unary import variant

HEADERS = ("functions.h", "elementwise.h")
NAMES = {OpCode.SCALE: "multiply_of", OpCode.SHIFT: "add_of", OpCode.WHERE: "where_of"}


@cache
def known_functions() -> frozenset[str]:
    """The functions that C has on vectors."""
    return frozenset(re.findall(r"\b\w+_of\b", " ".join([source.read(name) for name in HEADERS])))


def lacks(op: Op) -> str:
    """What C has no version of in an operator, or ""."""
    if op.is_linear:
        return ""
    if op.opcode not in FUSED:
        return type(op.node).__name__
    is_known = op.opcode is OpCode.COPY or _function(op) in known_functions()
    return "" if is_known else _function(op).removesuffix("_of")


def expression(op: Op, xs: Sequence[str]) -> str:
    """The vector that an elementwise operator makes of its operands."""
    if op.opcode is OpCode.COPY:
        return xs[0]
    operands = [*xs]
    if op.opcode is OpCode.UNARY:
        operands += map(literal, variant(op.kernel.name, op.arguments)[1])
    elif op.opcode in (OpCode.SCALE, OpCode.SHIFT, OpCode.WITH_NUMBER):
        is_first = op.opcode is OpCode.WITH_NUMBER and op.side
        operands.insert(0 if is_first else 1, f"splat({literal(op.number)})")
    return f"{_function(op)}({', '.join(operands)})"


def _function(op: Op) -> str:
    """The function of C that computes an elementwise operator."""
    if op.opcode is OpCode.UNARY:
        return variant(op.kernel.name, op.arguments)[0] + "_of"
    return NAMES.get(op.opcode) or f"{op.kernel.name}_of"


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(REAL)NAN"
    if math.isinf(number):
        return "(REAL)INFINITY" if number > 0 else "(REAL)-INFINITY"
    return f"(REAL){float(number)!r}"
