"""Assigns each value of a program to a buffer: packed, with a row for every token, or temporary."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import OWN_KERNELS, Op, OpCode, Origin, Value
from dynbatch.compiler.lifetimes import Lifetimes
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.program import Program


class Role(Enum):
    """The role of an array in generated code, and the letter that its name begins with."""

    STREAM = "X"
    PACKED = "P"  # values with a row for every token
    TEMPORARY = "T"  # values with a row for every running sentence
    FOUND_STATES = "H"  # the state as every step finds it, packed
    INITIAL_STATE = "I"
    BIAS = "b"
    WEIGHT = "V"  # (O, K)
    GRADIENT = "D"  # of values, with a row for every token
    TEMPORARY_GRADIENT = "E"  # with a row for every running sentence
    STREAM_GRADIENT = "dX"
    EXPORT_GRADIENT = "dY"
    LEFT_GRADIENT = "C"  # of the state that the step left: carried from step to step
    FOUND_GRADIENT = "N"  # of the state that the step found, where it has another place


def array_name(role: Role, label: int | str = "") -> str:
    return f"{role.value}{label}"


class ProgramBuffer:
    """An array of generated code: for one value, or for several whose lifetimes do not overlap.

    label:  what tells arrays of one role apart, a number.
    packed: one row for every token of the scan; else one for every running sentence.
    """

    __slots__ = ("label", "name", "packed", "role", "values", "width")

    def __init__(self, role: Role, label: int | str, width: int, packed: bool) -> None:
        self.role = role
        self.label = label
        self.name = array_name(role, label)
        self.width = width
        self.packed = packed
        self.values: list[Value] = []


class Columns(NamedTuple):
    """The place of a value: columns of a buffer."""

    buffer: ProgramBuffer
    column: int
    width: int


class Storage:
    """Buffers of a program for a CPU, and each value's place in them.

    An elementwise operator works in place where nothing later reads its input; so the gates of an
    LSTM end up in the very rows that the first product filled, and the parts of a gradient are
    made where they lie side by side.

    packed:    for what is read after the step, and what is made ahead of it.
    temporary: for the rest.
    kept:      what is read after the step.

    Args:
        kept:    values that are read after the step, by backward or outside.
        fixed:   values that have a place.
        results: values that other values are made in the place of.
        roles:   of packed and of temporary buffers.
        lives:   when values are made and read, if not operator after operator.
        overwrites: whether gradients of exports may be written over.
    """

    def __init__(
        self, program: Program, kept: Sequence[Value],
        fixed: Sequence[tuple[Value, ProgramBuffer, int]] = (), results: Sequence[Value] = (),
        roles: tuple[Role, Role] = (Role.PACKED, Role.TEMPORARY), lives: Lifetimes | None = None,
        overwrites: bool = True,
    ) -> None:  # fmt: skip
        self.packed: list[ProgramBuffer] = []
        self.temporary: list[ProgramBuffer] = []
        self.kept = kept
        self._roles = roles
        self._overwrites = overwrites
        self._columns: dict[int, tuple[ProgramBuffer, int]] = {}
        self._lives = lives or Lifetimes(program, [*kept, *program.following])
        self._ahead = {id(value) for op in program.ahead for value in op.outputs}
        for value, buffer, column in fixed:
            self._put(value, buffer, column)
        self._whole = self._whole_rows(program)
        for value in results:
            if not self.has_place(value):
                self._new(value.base, True)
        for op in reversed(program.every_op()):
            self._follow(op)
        for op in program.every_op():
            self._assign(op)

    def buffer_of(self, value: Value) -> tuple[ProgramBuffer, int]:
        buffer, column = self._columns[id(value.base)]
        return buffer, column + value.column

    def columns_of(self, value: Value) -> Columns:
        return Columns(*self.buffer_of(value), value.width)

    def is_ahead(self, buffer: ProgramBuffer) -> bool:
        """Whether a buffer has values that are made ahead, for all rows."""
        return any([id(value) in self._ahead for value in buffer.values])

    def left_by_step(self, program: Program) -> list[Columns | None]:
        """Columns of each part of the state after a step; None for one that no step changes."""
        return [
            None if value.origin is Origin.STATE else self.columns_of(value)
            for value in program.following
        ]

    def has_place(self, value: Value) -> bool:
        return id(value.base) in self._columns

    def is_kept(self, value: Value) -> bool:
        """Whether backward or anything outside the step reads any of its columns."""
        return any([value.overlaps(other) for other in self.kept])

    def _new(self, value: Value, packed: bool) -> None:
        buffers = self.packed if packed else self.temporary
        buffer = ProgramBuffer(self._roles[not packed], len(buffers), value.width, packed)
        buffers.append(buffer)
        self._put(value, buffer, 0)

    def _put(self, value: Value, buffer: ProgramBuffer, column: int) -> None:
        buffer.values.append(value)
        self._columns[id(value)] = (buffer, column)

    def _follow(self, op: Op) -> None:
        """Have the operands of an operator made where its output lies, if that has a place."""
        if not self.has_place(op.output):
            return
        buffer, column = self._columns[id(op.output)]
        for x, start in op.parts():
            first = column + start - x.column
            is_made_here = id(x.base) in self._lives.makers and not self.has_place(x)
            if is_made_here and self._fits(x.base, buffer, first):
                self._put(x.base, buffer, first)

    def _assign(self, op: Op) -> None:
        """Give what an operator makes a place: an operand's, a temporary value's, or a new one."""
        for value in op.outputs:
            must_pack = self._must_pack(value)
            places = [self.buffer_of(x) for x in op.inputs if self.has_place(x)]
            alike = [] if must_pack else self.temporary
            places = [] if op.opcode is OpCode.COPY else places
            places += [(b, 0) for b in alike if b.width == value.width]
            for buffer, column in places if not self.has_place(value) else ():
                if self._fits(value, buffer, column):
                    self._put(value, buffer, column)
                    break
            if not self.has_place(value):
                self._new(value, must_pack)

    def _whole_rows(self, program: Program) -> set[int]:
        """Values, by identity, that are whole rows of an array: own kernels write such."""
        makers = [op for op in program.every_op() if op.opcode in OWN_KERNELS]
        return {id(value) for op in makers for value in op.outputs}

    def _must_pack(self, value: Value) -> bool:
        return id(value) in self._ahead or self.is_kept(value)

    def _fits(self, value: Value, buffer: ProgramBuffer, column: int) -> bool:
        """Whether a value that is made here can lie in these columns of a buffer."""
        end = column + value.width
        if buffer.role is Role.EXPORT_GRADIENT and not self._overwrites:
            return False
        if column < 0 or end > buffer.width or (self._must_pack(value) and not buffer.packed):
            return False
        if id(value) in self._whole and value.width < buffer.width:
            return False
        for other in buffer.values:
            at = self._columns[id(other)][1]
            is_apart = end <= at or at + other.width <= column
            if not is_apart and not self._lives.can_share(value, column, other, at):
                return False
        return True


def storage_of(program: LoopProgram, backward: BackwardProgram) -> Storage:
    return Storage(program, [*read_after(program, backward), *backward.saved()])


def read_after(program: LoopProgram, backward: BackwardProgram) -> list[Value]:
    """Values of forward that leave the loop, or that linear maps multiply whose weights follow."""
    made = [value for value in backward.multiplied() if value.base.origin is Origin.OPERATOR]
    return [*program.results(), *made]


def gradient_storage_of(program: BackwardProgram, overwrites: bool) -> Storage:
    _carry_apart(program)
    fixed, results = fixed_places(program, Role.LEFT_GRADIENT), [*program.of_maps.values()]
    roles = (Role.GRADIENT, Role.TEMPORARY_GRADIENT)
    kept = program.packed_results()
    return Storage(program, kept, fixed, results, roles, overwrites=overwrites)


def fixed_places(program: BackwardProgram, found: Role) -> list[tuple[Value, ProgramBuffer, int]]:
    """Places of the gradients that come into a step or leave it.

    Args:
        found: the role of the array for the gradient of the state that the step found.
    """
    forward = program.forward
    exports = ProgramBuffer(Role.EXPORT_GRADIENT, "", forward.width, packed=True)
    pairs = zip(program.export_gradients, forward.exports_at(), strict=True)
    fixed = [(value, exports, column) for value, (_, column) in pairs]
    for value, left in zip(program.following, program.left_gradients, strict=True):
        buffer = ProgramBuffer(Role.LEFT_GRADIENT, left.number, left.width, packed=False)
        fixed.append((left, buffer, 0))
        if found is not buffer.role:
            buffer = ProgramBuffer(found, left.number, left.width, packed=False)
        fixed.append((value, buffer, 0))
    for number, value in program.of_streams.items():
        stream = ProgramBuffer(Role.STREAM_GRADIENT, number, value.width, packed=True)
        fixed.append((value, stream, 0))
    return fixed


def _carry_apart(program: BackwardProgram) -> None:
    """Copy carried gradients last where they are made before the step has read the old ones."""
    lives = Lifetimes(program, program.results())
    for number, (value, left) in enumerate(
        zip(program.following, program.left_gradients, strict=True)
    ):
        if not lives.can_share(value, 0, left, 0):
            program.following[number] = program.side_by_side(value.width, [(0, value)])
