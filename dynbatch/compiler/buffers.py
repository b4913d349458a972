"""Assigns each value of a program to a buffer: packed for backward, or temporary."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from dynbatch.compiler.ir import ELEMENTWISE, Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram


class Role(Enum):
    """The role of an array in generated code."""

    STREAM = auto()
    PACKED = auto()  # values with a row for every token
    TEMPORARY = auto()  # values with a row for every running sentence
    STATE = auto()  # rows of the state as the step finds it
    FOUND_STATES = auto()  # the same for every step, packed
    LEFT_STATES = auto()  # the state as every step left it, packed
    INITIAL_STATE = auto()
    BIAS = auto()
    WEIGHT = auto()  # (O, K)
    GRADIENT = auto()  # of values
    FACTOR = auto()  # of a gradient, with an array of its own: see `derivatives`
    STREAM_GRADIENT = auto()
    EXPORT_GRADIENT = auto()
    LEFT_GRADIENT = auto()  # of the state that the step left: carried from step to step
    FOUND_GRADIENT = auto()  # of the state that the step found, where it has another place
    CARRY_SCRATCH = auto()
    SUM_SCRATCH = auto()
    PLANE_SCRATCH = auto()


# How generated code begins their names.
LETTERS = {
    Role.STREAM: "X", Role.PACKED: "P", Role.TEMPORARY: "T", Role.STATE: "h",
    Role.FOUND_STATES: "H", Role.LEFT_STATES: "S", Role.INITIAL_STATE: "I", Role.BIAS: "b",
    Role.WEIGHT: "V", Role.GRADIENT: "D", Role.FACTOR: "F", Role.STREAM_GRADIENT: "dX",
    Role.EXPORT_GRADIENT: "dY", Role.LEFT_GRADIENT: "C", Role.FOUND_GRADIENT: "N",
    Role.CARRY_SCRATCH: "E", Role.SUM_SCRATCH: "Z", Role.PLANE_SCRATCH: "S",
}  # fmt: skip


def array_name(role: Role, label: int | str = "") -> str:
    """The name of an array in generated code."""
    return f"{LETTERS[role]}{label}"


class ProgramBuffer:
    """An array of generated code: for one value, or for several whose lifetimes do not overlap.

    label:  what tells arrays of one role apart: a number, or the shape of scratch.
    packed: one row for every token of the scan; else one for every running sentence.
    plane:  0 for rows x width; else the array is (width / plane) x rows x plane, so that each part
            of a merged value is contiguous. `planes` is the number of these.
    """

    __slots__ = ("label", "name", "packed", "plane", "planes", "role", "values", "width")

    def __init__(
        self, role: Role, label: int | str, width: int, packed: bool, plane: int = 0
    ) -> None:
        self.role = role
        self.label = label
        self.name = array_name(role, label)
        self.width = width
        self.packed = packed
        self.plane = plane
        self.planes = width // plane if plane else 1
        self.values: list[Value] = []


class Columns(NamedTuple):
    """The place of a value: columns of a buffer."""

    buffer: ProgramBuffer
    column: int
    width: int


def plane_of(value: Value) -> int:
    """The plane width in which to store a base value or its gradient; 0 for plain rows.

    Operators read columns of one plane or a whole number of planes (see `fusion`).
    """
    return value.planes[0] if len(set(value.planes)) == 1 < len(value.planes) else 0


class BufferAssignment:
    """Buffers of a program's forward pass, and each value's place in them.

    packed:    for what backward reads, what leaves a step, and linear maps of the streams.
    temporary: for the rest, as far as it has memory.
    """

    def __init__(
        self, program: LoopProgram, exports: Sequence[Value], following: Sequence[Value]
    ) -> None:
        self.program = program
        self.packed: list[ProgramBuffer] = []
        self.temporary: list[ProgramBuffer] = []
        self._leaving = [*exports, *following]
        self._kept = [*self._leaving, *retained_values(program)]
        self._columns: dict[int, tuple[ProgramBuffer, int]] = {}

    def buffer_of(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Buffer and first column of a value that has memory."""
        buffer, column = self._columns[id(value.base)]
        return buffer, column + value.column

    def columns_of(self, value: Value) -> Columns:
        """Columns of a value that has memory."""
        return Columns(*self.buffer_of(value), value.width)

    def is_kept(self, value: Value) -> bool:
        """Whether backward or anything outside the step reads any of its columns."""
        return any([value.overlaps(other) for other in self._kept])

    def _new(self, value: Value, packed: bool, plane: int = 0) -> None:
        """Give a value a buffer of its own."""
        buffers = self.packed if packed else self.temporary
        role = Role.PACKED if packed else Role.TEMPORARY
        buffers.append(ProgramBuffer(role, len(buffers), value.width, packed, plane))
        self._put(value, buffers[-1], 0)

    def _put(self, value: Value, buffer: ProgramBuffer, column: int) -> None:
        buffer.values.append(value)
        self._columns[id(value)] = (buffer, column)


class Storage(BufferAssignment):
    """Buffers of generated Python.

    An elementwise operator works in place when nothing else, backward included, will read its
    input; so the gates of an LSTM end up in the very rows that the first product filled.
    """

    def __init__(self, program: LoopProgram) -> None:
        super().__init__(program, program.exports, program.following)
        self._order = {id(op): i for i, op in enumerate(program.ops)}
        for op in program.stream_maps:
            self._new(op.output, True, plane_of(op.output))
        for op in program.ops:
            self._assign(op)

    def _assign(self, op: Op) -> None:
        must_pack, plane = self.is_kept(op.output), plane_of(op.output)
        for x in op.inputs if op.opcode in ELEMENTWISE else ():
            if id(x.base) in self._columns and self._dies(x, op):
                buffer, column = self.buffer_of(x)
                if buffer.packed or not must_pack:
                    self._put(op.output, buffer, column)
                    return
        for buffer in () if must_pack else self.temporary:
            is_alike = (buffer.width, buffer.plane) == (op.output.width, plane)
            if is_alike and not any([self._readers_from(op, v) for v in buffer.values]):
                self._put(op.output, buffer, 0)
                return
        self._new(op.output, must_pack, plane)

    def _dies(self, value: Value, op: Op) -> bool:
        return not self.is_kept(value) and self._readers_from(op, value) == [op]

    def _readers_from(self, op: Op, value: Value) -> list[Op]:
        """Operators that read a value, `op` or later ones."""
        here = self._order[id(op)]
        return [r for r in self.program.readers(value) if self._order[id(r)] >= here]


def retained_values(program: LoopProgram) -> list[Value]:
    """Values made by operators that some operator's backward reads."""
    read = [value for op in program.ops for value in backward_reads(op)]
    return [value for value in read if value.base.origin is Origin.OPERATOR]


def backward_reads(op: Op) -> list[Value]:
    """Values that the backward of `op` reads, besides gradients."""
    if op.is_linear:
        return [op.inputs[0]]
    if op.opcode is OpCode.COPY:
        return []
    retains = op.node.retains
    reads = [x for position, x in enumerate(op.inputs) if retains.input(position)]
    return [*reads, op.output] if retains.output else reads
