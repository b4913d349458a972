"""`Lifetimes`: when the values of a program are made and read, and so which can share memory."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode, Value
from dynbatch.compiler.program import Program


class Lifetimes:
    """Times at which values are made and read, as positions in the order of operators.

    Attributes:
        makers: the operator that makes each base value, by identity.

    Args:
        kept: what is read after the last operator.
    """

    def __init__(self, program: Program, kept: Sequence[Value]) -> None:
        timed = self._timed(program)
        self.makers = {id(value): op for _, op in timed for value in op.outputs}
        self._made = {id(value): at for at, op in timed for value in op.outputs}
        self._read: dict[int, list[tuple[int, Value]]] = {}
        for at, op in timed:
            for x in op.inputs:
                self._read.setdefault(id(x.base), []).append((at, x))
        for value in kept:
            self._read.setdefault(id(value.base), []).append((len(timed), value))

    def _timed(self, program: Program) -> list[tuple[int, Op]]:
        return [*enumerate(program.every_op())]

    def can_share(self, a: Value, column_a: int, b: Value, column_b: int) -> bool:
        """Whether two base values can lie in columns of one buffer that overlap.

        The one that is made later must not overwrite what is read later still. An operator may
        overwrite its operand if element for element lies in the same place.
        """
        first, last = (a, column_a), (b, column_b)
        if self._position(a) > self._position(b):
            first, last = last, first
        at, (early, early_column), (late, late_column) = self._position(last[0]), first, last
        if self._position(early) == at:
            return False
        for position, x in self._read.get(id(early), []):
            start = early_column + x.column
            is_touched = start < late_column + late.width and late_column < start + x.width
            if is_touched and position >= at:
                if position > at or not self._overwrites(late, x, start - late_column):
                    return False
        return True

    def _overwrites(self, made: Value, x: Value, offset: int) -> bool:
        """Whether a value may be made over an operand that lies so many columns into it."""
        op = self.makers[id(made)]
        if op.opcode is OpCode.COPY:
            starts = [at for other, at in op.parts() if other is x]
            return starts == [offset]
        if op.opcode is OpCode.PARTIAL:
            assert op.source is not None
            is_safe = op.source.opcode is OpCode.WHERE or op.source.kernel.inplace
        else:
            is_safe = op.opcode in ELEMENTWISE
        return bool(is_safe and offset == 0 and x.width == made.width)

    def _position(self, value: Value) -> int:
        return self._made.get(id(value), -1)
