"""`GradientSums`: gradients as sums of what operators give back, and operators that add these."""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.compiler.ir import OpCode, Origin, Value
from dynbatch.compiler.program import Program
from dynbatch.kernels import binary


class GradientPart(NamedTuple):
    """The sum so far of the gradients of some columns: `gradient`, or gradient ⊙ factor."""

    first: int
    end: int
    gradient: Value
    factor: Value | None = None

    def cut(self, program: Program, first: int, end: int) -> GradientPart:
        at, width = first - self.first, end - first
        factor = None if self.factor is None else program.columns(self.factor, at, width)
        return GradientPart(first, end, program.columns(self.gradient, at, width), factor)

    def value(self, program: Program) -> Value:
        """The gradient, multiplied if it must be."""
        if self.factor is None:
            return self.gradient
        operands = [self.gradient, self.factor]
        return program.make(OpCode.BINARY, operands, self.gradient.width, kernel=binary.multiply)


class GradientSums:
    """The gradients of a program's values, as sums of what operators contribute."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._parts: dict[int, list[GradientPart]] = {}  # of each base value, without overlaps

    def add(self, value: Value, gradient: Value, factor: Value | None = None) -> None:
        """Add a gradient, times a factor, to that of a value, perhaps of some columns of one."""
        base, program = value.base, self._program
        if base.origin is Origin.MEMORY:
            return
        added = GradientPart(value.column, value.column + value.width, gradient, factor)
        known = self._parts.get(id(base), [])
        if len(known) > 1 and sum([part.end - part.first for part in known]) == value.width:
            self.gradient(base)  # side by side, so that one sum does for all
        parts: list[GradientPart] = []
        missing = [(added.first, added.end)]
        for part in self._parts.get(id(base), []):
            low, high = max(part.first, added.first), min(part.end, added.end)
            if low >= high:
                parts.append(part)
                continue
            for first, end in ((part.first, low), (high, part.end)):
                if first < end:
                    parts.append(part.cut(program, first, end))
            terms = [each.cut(program, low, high).value(program) for each in (part, added)]
            total = program.make(OpCode.BINARY, terms, terms[0].width, kernel=binary.add)
            parts.append(GradientPart(low, high, total))
            missing = [
                hole
                for first, end in missing
                for hole in ((first, min(end, low)), (max(first, high), end))
                if hole[0] < hole[1]
            ]
        parts += [added.cut(program, first, end) for first, end in missing]
        self._parts[id(base)] = sorted(parts, key=lambda part: part.first)

    def gradient(self, base: Value) -> Value | None:
        """The gradient of a base value, with zeros where nothing was added; None if nothing was."""
        parts = self._parts.get(id(base))
        if not parts:
            return None
        program = self._program
        values = [(part.first, part.value(program)) for part in parts]
        total = values[0][1]
        if total.width < base.width:
            total = program.side_by_side(base.width, values)
        self._parts[id(base)] = [GradientPart(0, base.width, total)]
        return total
