"""Buffers for a loop's values and gradients on a GPU, and each gradient's first writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynbatch.compiler.buffers import BufferAssignment, ProgramBuffer
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lanes import FUSED, ColumnRange, Item, ops_of
from dynbatch.compiler.lowering import LoopProgram


class DeviceStorage(BufferAssignment):
    """Buffers of a loop's forward pass on a GPU: rows x width each.

    Temporary buffers hold values that one kernel of a step passes to another; everything else stays
    in registers. An operator overwrites an input that is not read again, so the gates of an LSTM
    take the place of the first product.
    """

    def __init__(
        self, program: LoopProgram, order: list[Item], exports: list[Value], following: list[Value]
    ) -> None:
        self._leaving = [*exports, *following]
        super().__init__([*self._leaving, *_retained_values(program)])
        ops = [(number, op) for number, item in enumerate(order) for op in ops_of(item)]
        self._item = {id(op): number for number, op in ops}
        self._ops = [op for _, op in ops]
        self._readers: dict[int, list[tuple[Op, Value]]] = {}
        self._room: dict[int, tuple[ProgramBuffer, int]] = {}
        self._taken: dict[str, list[tuple[int, int]]] = {}
        for op in self._ops:
            for x in op.inputs:
                self._readers.setdefault(id(x.base), []).append((op, x))
        for op in program.stream_maps:
            self._new(op.output, packed=True)
        for op in self._ops:
            self._assign(op)

    def find(self, value: Value) -> tuple[ProgramBuffer, int] | None:
        """Buffer and first column of a value that an operator made; None if it has no memory."""
        return self.buffer_of(value) if id(value.base) in self._columns else None

    def room_for_gradient(self, op: Op) -> ProgramBuffer | None:
        """The buffer of a map of the tokens, if the gradient of its output may be written there.

        The values there must then be read only by the kernel that writes the gradient, in the same
        columns; so the gradients of an LSTM's gates take the place of the gates.
        """
        buffer, column = self.buffer_of(op.output)
        readers = self._readers.get(id(op.output), [])
        writers = {self._item[id(reader)] for reader, _ in readers}
        ends = 0
        for _, x in sorted(readers, key=lambda pair: pair[1].column):
            ends = max(ends, x.column + x.width) if x.column <= ends else ends
        holders = [v for v in buffer.values if v is not op.output]
        if column or buffer.width != op.output.width or self.is_kept(op.output):
            return None
        if len(writers) != 1 or ends < op.output.width or not self._read_by(holders, writers):
            return None
        return buffer

    def _read_by(self, holders: list[Value], items: set[int]) -> bool:
        """Whether the values stay in the step, and only these items read them in backward."""
        if any([v.overlaps(other) for v in holders for other in self._leaving]):
            return False
        read_by = [
            op
            for op in self._ops
            if any([v.overlaps(read) for v in holders for read in _backward_reads(op)])
        ]
        return all([self._item[id(op)] in items and op.opcode in FUSED for op in read_by])

    def bias_in_kernel(self, op: Op) -> bool:
        """Whether a linear map's bias can wait until a group reads the map's output."""
        readers = self._readers.get(id(op.output), [])
        return not self.is_kept(op.output) and all([r.opcode in FUSED for r, _ in readers])

    def _assign(self, op: Op) -> None:
        must_pack = self.is_kept(op.output)
        room = None
        if op.opcode in FUSED and op.opcode is not OpCode.COPY:
            room = next((r for x in op.inputs if (r := self._room_of(x, op)) is not None), None)
        if must_pack and room is not None and self._take(*room, op.output.width):
            self._put(op.output, *room)
        elif must_pack or op.opcode not in FUSED or self._crosses(op):
            self._new(op.output, must_pack)
        elif room is not None:
            self._room[id(op.output)] = room

    def _room_of(self, value: Value, op: Op) -> tuple[ProgramBuffer, int] | None:
        """Packed memory that `op` may overwrite: its input's, or that of the input's own input."""
        if self.is_kept(value) or not self._dies(value, op):
            return None
        own = self.find(value)
        if own is not None:
            return own if own[0].packed else None
        room = self._room.get(id(value.base))
        return None if room is None else (room[0], room[1] + value.column)

    def _take(self, buffer: ProgramBuffer, column: int, width: int) -> bool:
        """Take columns of a buffer, unless another value has them."""
        taken = self._taken.setdefault(buffer.name, [])
        if any([s < column + width and column < e for s, e in taken]):
            return False
        taken.append((column, column + width))
        return True

    def _crosses(self, op: Op) -> bool:
        """Whether a kernel other than its own reads the operator's output."""
        here = self._item[id(op)]
        return any([self._item[id(r)] != here for r, _ in self._readers.get(id(op.output), [])])

    def _dies(self, value: Value, op: Op) -> bool:
        here = self._item[id(op)]
        readers = self._readers[id(value.base)]
        return not any([self._item[id(r)] > here for r, read in readers if read.overlaps(value)])


@dataclass
class GradientSlot:
    """Memory for the gradient of a base value, or of some part of the state or of a stream.

    written: ranges of columns that have been written so far, in the order of backward.
    cleared: it must be zeros before the step, for a later writer adds where none has written.
    """

    buffer: ProgramBuffer
    written: list[tuple[int, int]] = field(default_factory=list)
    cleared: bool = False

    def mode(self, first: int, width: int) -> bool:
        """Note a writer of these columns; return whether it adds to earlier ones."""
        covered = sum([min(e, first + width) - max(s, first) for s, e in self.written
                       if s < first + width and first < e])  # fmt: skip
        if covered and covered < width:
            self.cleared = True
        self.written.append((first, first + width))
        return covered > 0 or self.cleared

    def covers(self, segment: ColumnRange) -> bool:
        """Whether writers have reached every one of the segment's columns."""
        end = segment.first + segment.width
        return self.cleared or any([s <= segment.first and end <= e for s, e in self.written])


def _retained_values(program: LoopProgram) -> list[Value]:
    """Values made by operators that some operator's backward reads."""
    read = [value for op in program.ops for value in _backward_reads(op)]
    return [value for value in read if value.base.origin is Origin.OPERATOR]


def _backward_reads(op: Op) -> list[Value]:
    """Values that the backward of `op` reads, besides gradients."""
    if op.is_linear:
        return [op.inputs[0]]
    if op.opcode is OpCode.COPY:
        return []
    retains = op.node.retains
    reads = [x for position, x in enumerate(op.inputs) if retains.input(position)]
    return [*reads, op.output] if retains.output else reads
