"""`Program`: values and operators, of one pass of a cell's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.compiler.ir import Op, OpCode, Origin, Value


class Program:
    """One pass of a loop: what every step computes, and what is computed ahead for many steps.

    Attributes:
        values:    all that operators make, their inputs, and views of either.
        ahead:     operators for the rows of many steps at once, before these steps run: wide linear
                   maps of a stream.
        ops:       operators of a step, in order.
        following: the value of each part of the state, or of its gradient, for the next step.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ahead: list[Op] = []
        self.ops: list[Op] = []
        self.following: list[Value] = []

    def value(self, width: int, origin: Origin = Origin.OPERATOR, number: int = 0) -> Value:
        value = Value(width, origin, number)
        self.values.append(value)
        return value

    def columns(self, value: Value, column: int, width: int) -> Value:
        """Some columns of a value, counted from its own first."""
        if (column, width) == (0, value.width):
            return value
        view = Value.columns(value.base, value.column + column, width)
        self.values.append(view)
        return view

    def make(self, opcode: OpCode, inputs: list[Value], width: int, **attributes: Any) -> Value:
        """The value, so wide, that a new operator makes."""
        value = self.value(width)
        self.ops.append(Op(opcode, inputs, value, **attributes))
        return value

    def side_by_side(self, width: int, parts: Sequence[tuple[int, Value]]) -> Value:
        """Values from these columns on, and zeros in the others, made by a new operator."""
        columns = [column for column, _ in parts]
        return self.make(OpCode.COPY, [x for _, x in parts], width, columns=columns)

    def move(self, value: Value, base: Value, column: int = 0) -> None:
        for view in self.values:
            if view.base is value and view is not value:
                view.become_view(base, column + view.column)
        value.become_view(base, column)

    def every_op(self) -> list[Op]:
        return [*self.ahead, *self.ops]

    def results(self) -> list[Value]:
        return self.following

    def leaving(self) -> set[int]:
        return {id(v) for v in self.results()}

    @property
    def has_matrices(self) -> bool:
        return any([op.opcode is OpCode.CONTRACT for op in self.ops])

    def readers(self, value: Value) -> list[Op]:
        """Operators of a step that read any column of `value`."""
        return [op for op in self.ops if any([x.overlaps(value) for x in op.inputs])]


def numbered(ops: Sequence[Op]) -> dict[int, int]:
    """Numbers of operators by their identity."""
    return {id(op): number for number, op in enumerate(ops)}
