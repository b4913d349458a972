"""Prints a scalar operator as an expression: of C on vectors, or of CUDA C++ on one number.

Both have a function of each name, printed from its definition (`elementwise.h`, `unary.cuh`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.compiler.ir import Op, OpCode


class Language(NamedTuple):
    """Numbers of a language; `operand` has its form beside values that differ by element."""

    operand: str
    zero: str
    infinity: str
    nan: str

    def literal(self, number: float) -> str:
        if math.isnan(number):
            return self.nan
        if math.isinf(number):
            return self.infinity if number > 0 else f"-{self.infinity}"
        return f"(REAL){float(number)!r}"

    def expression(self, op: Op, xs: Sequence[str]) -> str:
        """The element that an elementwise operator, or CONTRACT, makes of its operands."""
        if op.opcode is OpCode.COPY:
            return xs[0] if xs else self.zero
        if op.opcode is OpCode.CONTRACT:
            return " * ".join(xs)
        if op.opcode is OpCode.PARTIAL:
            return self._partial(op, xs)
        return f"{_name(op)}_of({', '.join(self._operands(op, xs))})"

    def _partial(self, op: Op, xs: Sequence[str]) -> str:
        """The gradient of one operand, from dy and what the derivative reads."""
        source, (dy, *read) = op.source, xs
        assert source is not None
        # dy stands in where the derivative reads nothing.
        side, operands = op.derivative(read, self._number(source), dy)
        if source.opcode is OpCode.UNARY:
            return f"{_name(source)}_back({', '.join([dy, *self._operands(source, operands)])})"
        return f"{_name(source)}_back_{'ab'[side]}({', '.join([dy, *operands])})"

    def _operands(self, op: Op, xs: Sequence[str]) -> list[str]:
        if op.opcode is OpCode.UNARY:
            return [xs[0], *map(self.literal, op.kernel.chosen(op.arguments)[1])]
        return op.operands(xs, self._number(op))

    def _number(self, op: Op) -> str:
        return self.operand.format(self.literal(op.number))


C = Language("splat({})", "zeros()", "(REAL)INFINITY", "(REAL)NAN")
CUDA = Language("{}", "0", "infinity()", "(infinity() - infinity())")


def _name(op: Op) -> str:
    if op.opcode is OpCode.UNARY:
        return str(op.kernel.chosen(op.arguments)[0].name)
    return "where" if op.opcode is OpCode.WHERE else str(op.kernel.name)
