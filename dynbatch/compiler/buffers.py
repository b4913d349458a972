"""Where each value of a program lives during a step: packed for backward, or temporary."""

from __future__ import annotations

from dynbatch.compiler.program import ELEMENTWISE, Op, Program, Value, readers


class ProgramBuffer:
    """An array of generated code: rows for one value, or for several whose lives do not meet.

    packed: one row for every token of the scan; else one for every running sentence.
    plane:  0 for rows x width; else the array is (width / plane) x rows x plane, so that each part
            of a merged value is contiguous.
    """

    __slots__ = ("held", "name", "packed", "plane", "width")

    def __init__(self, name: str, width: int, packed: bool, plane: int = 0) -> None:
        self.name = name
        self.width = width
        self.packed = packed
        self.plane = plane
        self.held: list[Value] = []

    @property
    def planes(self) -> int:
        """Number of planes."""
        return self.width // self.plane if self.plane else 1


def plane_of(value: Value) -> int:
    """Width of the planes to store a base value, or its gradient, in; 0 for plain rows.

    Operators read columns of one plane or a whole number of planes (see `widen`).
    """
    return value.planes[0] if len(set(value.planes)) == 1 < len(value.planes) else 0


class Storage:
    """Buffers of a program's forward pass, and the place of each value in them.

    An elementwise operator works in place when nothing else, backward included, will read its
    input; so the gates of an LSTM end up in the very rows that the first product filled.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.packed: list[ProgramBuffer] = []
        self.temporary: list[ProgramBuffer] = []
        self.retained = retained_values(program)
        self._places: dict[int, tuple[ProgramBuffer, int]] = {}
        self._order = {id(op): i for i, op in enumerate(program.ops)}
        for op in program.stream_maps:
            self._put(op.output, self._new(op.output, packed=True), 0)
        for op in program.ops:
            self._place(op)

    def place(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Buffer and first column of a value that an operator made."""
        buffer, column = self._places[id(value.base)]
        return buffer, column + value.column

    def is_retained(self, value: Value) -> bool:
        """Whether backward, or the world outside the step, reads any of its columns."""
        leaving = [*self.program.exports, *self.program.following]
        return any(value.overlaps(other) for other in [*self.retained, *leaving])

    def _place(self, op: Op) -> None:
        must_pack = self.is_retained(op.output)
        if op.kind in ELEMENTWISE:
            for x in op.inputs:
                if id(x.base) in self._places and self._dies(x, op):
                    buffer, column = self.place(x)
                    if buffer.packed or not must_pack:
                        self._put(op.output, buffer, column)
                        return
        if must_pack:
            self._put(op.output, self._new(op.output, packed=True), 0)
            return
        for buffer in self.temporary:
            plane = plane_of(op.output)
            same = buffer.width == op.output.width and buffer.plane == plane
            if same and self._is_free(buffer, op):
                self._put(op.output, buffer, 0)
                return
        self._put(op.output, self._new(op.output, packed=False), 0)

    def _dies(self, value: Value, op: Op) -> bool:
        others = [r for r in readers(self.program, value) if r is not op]
        return not self.is_retained(value) and all(
            self._order[id(r)] < self._order[id(op)] for r in others
        )

    def _is_free(self, buffer: ProgramBuffer, op: Op) -> bool:
        return all(
            self._order[id(reader)] < self._order[id(op)]
            for value in buffer.held
            for reader in readers(self.program, value)
        )

    def _new(self, value: Value, packed: bool) -> ProgramBuffer:
        kind = self.packed if packed else self.temporary
        name = f"{'P' if packed else 'T'}{len(kind)}"
        buffer = ProgramBuffer(name, value.width, packed, plane_of(value))
        kind.append(buffer)
        return buffer

    def _put(self, value: Value, buffer: ProgramBuffer, column: int) -> None:
        buffer.held.append(value)
        self._places[id(value)] = (buffer, column)


def retained_values(program: Program) -> list[Value]:
    """Values made by operators that some operator's backward reads."""
    found: list[Value] = []
    for op in program.ops:
        found += [v for v in backward_reads(op) if v.base.origin == "op"]
    return found


def backward_reads(op: Op) -> list[Value]:
    """Values that the backward of `op` reads, besides gradients."""
    if op.kind == "linear":
        return [op.inputs[0]]
    if op.kind == "generic" or op.kind in ELEMENTWISE:
        retains = op.node.retains
        reads = [x for position, x in enumerate(op.inputs) if retains.input(position)]
        return [*reads, op.output] if retains.output else reads
    return []
