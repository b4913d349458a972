"""Prints a scalar operator as an expression of C on vectors: see `elementwise.h`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode
from dynbatch.kernels import binary
from dynbatch.kernels.unary import every_function


@cache
def known_functions() -> frozenset[str]:
    return frozenset([*[f.name for f in every_function()], *binary.FUNCTIONS, "where"])


def lacks(op: Op) -> str:
    """The function of an operator of forward, if C has no version of it, or ""."""
    if op.opcode not in ELEMENTWISE:
        return ""
    name = _name(op)
    return "" if name in known_functions() else name


def has_steps(op: Op) -> bool:
    """Whether an operator with its own kernels has steps in C: see `Operation.step_scores`."""
    scores = op.node.step_scores(op.memories)
    return scores is not None and scores.in_c(np.dtype(np.float32)) is not None


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
    side, operands = op.derivative(read, _splat(source), dy)  # dy stands in where it reads nothing
    if source.opcode is OpCode.UNARY:
        return f"{_name(source)}_back({', '.join([dy, *_operands(source, operands)])})"
    return f"{_name(source)}_back_{'ab'[side]}({', '.join([dy, *operands])})"


def _operands(op: Op, xs: Sequence[str]) -> list[str]:
    if op.opcode is OpCode.UNARY:
        return [xs[0], *map(literal, op.kernel.chosen(op.arguments)[1])]
    return op.operands(xs, _splat(op))


def _name(op: Op) -> str:
    if op.opcode is OpCode.UNARY:
        return str(op.kernel.chosen(op.arguments)[0].name)
    return "where" if op.opcode is OpCode.WHERE else str(op.kernel.name)


def _splat(op: Op) -> str:
    return f"splat({literal(op.number)})"


def literal(number: float) -> str:
    if math.isnan(number):
        return "(REAL)NAN"
    if math.isinf(number):
        return "(REAL)INFINITY" if number > 0 else "(REAL)-INFINITY"
    return f"(REAL){float(number)!r}"
