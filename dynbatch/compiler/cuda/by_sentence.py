"""Runs all steps of a scan whose states are matrices in one launch: a block for each sentence.

The nests and groups of a step are those that C runs (`compiler/groups`), on buffers that hold the
same values; `block_passes` prints them for the threads of a block. What a step makes and reads
again lies in shared memory, as does the state, which has two rooms there: the one that the step
finds and the one that it leaves. Only what is read after the step is written to memory. Where the
heads of a cell do not meet, each has a block of its own, with a part of every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf

from dynbatch.compiler.buffers import ProgramBuffer, Role, array_name
from dynbatch.compiler.cuda.barriers import BlockPass, Touch, barriers
from dynbatch.compiler.cuda.block_passes import (
    SUMS,
    THREADS,
    BlockPlace,
    BlockPlaces,
    lane_pass,
    nest_passes,
)
from dynbatch.compiler.cuda.emit import STEP, Arrays
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.groups import items
from dynbatch.compiler.heads import Heads
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lanes import KernelGroup, is_read
from dynbatch.compiler.nests import NestGroup
from dynbatch.compiler.places import Pointers

# Nobody reads a state before the last of a sentence in a chunk if no backward follows.
LEAVES = "const bool leaves = keeps || t + 1 == last || row >= steps[3 * t + 4];"
BEFORE = "_before"  # the room of a state as the step finds it


class SentenceKernel:
    """The text of the kernel of one pass, all steps of it: see `LastSteps`."""

    threads, asks = THREADS, True

    def __init__(self, loop: Loop, is_backward: bool) -> None:
        self.ahead = f"constexpr int THREADS = {THREADS}, WARPS = THREADS / WARP;"
        self.loop = loop
        self.is_backward = is_backward
        self.name = "sentences_backward" if is_backward else "sentences"
        self.arrays = Arrays(loop)
        program = loop.backward_program if is_backward else loop.program
        storages = [loop.gradients, loop.storage] if is_backward else [loop.storage]
        self._ops = program.ops
        self._kept = program.results() if is_backward else loop.storage.kept
        self._places = Pointers(*storages)
        self._made = {id(op.output) for op in self._ops}
        self._rooms: dict[str, ProgramBuffer] = {}
        self._states = program.following
        self.items = items(self._ops, self._places, self._is_kept)
        groups = [(item,) if isinstance(item, Op) else item.ops for item in self.items]
        self._read_again = {
            id(op.output) for ops in groups for op in ops if is_read(op.output, self._ops, ops, [])
        }

    def most_rows(self, itemsize: int) -> float:
        return inf

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory of a block, addresses of arrays included."""
        return self.shared * itemsize + 8 * len(self.arrays.names)

    def text(self, prefix: str) -> str:
        steps = "int t = first; t < last; ++t"
        if self.is_backward:
            steps = "int t = last - 1; t >= first; --t"
        body = [
            *self._room_lines,
            *self._before,
            f"for ({steps}) {{",
            f"    {STEP}",
            "    if (row >= n) " + ("continue;" if self.is_backward else "break;"),
            *([] if self.is_backward else [f"    {LEAVES}"]),
            *[f"    {line}" for line in self._step],
            "}",
            *self._behind,
        ]
        heads = f"const int head = blockIdx.x % {self.blocks};" if self.blocks > 1 else ""
        row = f"const long long row = blockIdx.x{f' / {self.blocks}' if self.blocks > 1 else ''};"
        lines = [
            f'extern "C" __global__ void __launch_bounds__({THREADS}, 2) {prefix}_{self.name}'
            f"({self.arrays.parameters()}const int* steps, int first, int last, int keeps) {{",
            "    extern __shared__ REAL rooms[];",
            f"    {row}",
            f"    {heads}" if heads else "",
            *[f"    {line}" for line in self.arrays.in_shared(body)],
            "}",
        ]
        return "\n".join(filter(None, lines))

    def _in_room(self, base: Value) -> bool:
        """Whether a value lies in shared memory."""
        if base.origin is Origin.STATE:
            return not self.is_backward and self.loop.program.following[base.number] is not base
        return base.origin is Origin.LEFT_GRADIENT or id(base) in self._read_again or any(
            [base is value for value in self._states]
        )  # fmt: skip

    # Places ---------------------------------------------------------------------------------------

    def _is_kept(self, segment: Value, group: Sequence[Op]) -> bool:
        return is_read(segment, self._ops, group, self._kept)

    def _reads(self, value: Value) -> BlockPlace:
        base, column = value.base, value.column
        if base.origin is Origin.STATE:
            return self._state(base, column)
        buffer, first = self._places.buffer_of(base)
        if id(base) in self._made or base.origin is Origin.LEFT_GRADIENT:
            return self._room(buffer, first, column)
        return self._memory(buffer, first + column)

    def _writes(self, value: Value) -> list[BlockPlace]:
        base = value.base
        buffer, first = self._places.buffer_of(base)
        places = [self._room(buffer, first, value.column)] if self._in_room(base) else []
        is_kept = any([value.overlaps(other) for other in self._kept])
        if is_kept and buffer.packed:
            memory = self._memory(buffer, first + value.column)
            places.append(memory._replace(guard=self._wanted(value, buffer)))
        return places

    def _wanted(self, value: Value, buffer: ProgramBuffer) -> str:
        """The condition on which something reads what a step leaves in memory, if not always."""
        if self.is_backward:
            return buffer.name if buffer.role is Role.STREAM_GRADIENT else ""
        if any([value.overlaps(other) for other in self.loop.program.exports]):
            return ""
        is_state = any([value.base is other for other in self._states])
        return "leaves" if is_state else "keeps"

    def _state(self, base: Value, column: int) -> BlockPlace:
        """A state as the step finds it: in a room of the step before, in backward in memory."""
        columns = self.loop.storage.left_by_step(self.loop.program)[base.number]
        if columns is not None and not self.is_backward:
            return self._room(columns.buffer, columns.column, column, BEFORE)
        pointer = f"h{base.number}"
        line = f"const REAL* const {pointer} = {self.arrays.state(base)};"
        return BlockPlace(_at(pointer, column), None, column, line=line, guard=pointer)

    def _room(self, buffer: ProgramBuffer, first: int, column: int, turn: str = "") -> BlockPlace:
        """The place of a value from column `first` of a buffer: `column` of a head's part of it."""
        name, part = _room_name(buffer), first // self.blocks + column
        self._rooms[name] = buffer
        return BlockPlace(_at(name + turn, part), name + turn, part, is_part=True)

    def _memory(self, buffer: ProgramBuffer, column: int) -> BlockPlace:
        name = self.arrays.take(buffer.name)
        row = "(s + row)" if buffer.packed else "row"
        pointer = f"{name}_row"
        line = f"REAL* const {pointer} = {name} + {row} * {buffer.width};"
        return BlockPlace(_at(pointer, column), name, column, line=line)

    # Text -----------------------------------------------------------------------------------------

    def print_for(self, heads: Heads) -> None:
        """Print it, with a block for each head."""
        self.blocks = heads.count
        places = BlockPlaces(self._reads, self._writes, self._is_kept, heads)
        step: list[BlockPass] = []
        for item in self.items:
            if isinstance(item, NestGroup):
                step += nest_passes(item, places)
            elif isinstance(item, KernelGroup):
                step += filter(None, [lane_pass(lane, item.ops, places) for lane in item.lanes])
            else:
                raise AssertionError(f"no kernel by sentences has {item.opcode}")
        before, behind = self._carried(places)
        self._in_place = self._find_in_place(step)
        chosen = barriers(before, step, behind, self._in_turn)
        printed = [
            [*(["__syncthreads();"] if number in chosen else []), *each.lines]
            for number, each in enumerate((*before, *step, *behind))
        ]
        ends = len(before), len(before) + len(step)
        self._before = [line for each in printed[: ends[0]] for line in each]
        self._step = [line for each in printed[ends[0] : ends[1]] for line in each]
        self._behind = [line for each in printed[ends[1] :] for line in each]
        self._add_rooms(
            max([t.end for each in step for t in each.touches if t.space == SUMS] or [0])
        )

    def _in_turn(self, space: str, step: int) -> str:
        """A space, which may be another one in each step: a row of memory, a state's room."""
        name = space.removesuffix(BEFORE)
        if name in self._two_rooms and name not in self._in_place:
            return f"{name} {(step + (name != space)) % 2}"
        return name if name in self._rooms or name == SUMS else f"{space} {step}"

    def _find_in_place(self, step: Sequence[BlockPass]) -> set[str]:
        """The rooms of states that a step may write over as soon as it has read each element."""
        in_place: set[str] = set()
        for name in self._two_rooms:
            reads = [(k, t) for k, each in enumerate(step) for t in each.touches
                     if t.space == name + BEFORE]  # fmt: skip
            writes = [(k, t) for k, each in enumerate(step) for t in each.touches
                      if t.space == name and t.writes]  # fmt: skip
            meets = [
                (k, m) for k, x in reads for m, y in writes
                if m < k or (m == k and (x.first, x.strides) != (y.first, y.strides))
            ]  # fmt: skip
            if not meets:
                in_place.add(name)
        return in_place

    @cached_property
    def _two_rooms(self) -> set[str]:
        """The rooms of states, of which a step finds one and leaves another."""
        if self.is_backward:
            return set()
        left = self.loop.storage.left_by_step(self.loop.program)
        return {_room_name(columns.buffer) for columns in left if columns is not None}

    def _carried(self, places: BlockPlaces) -> tuple[list[BlockPass], list[BlockPass]]:
        """Passes that bring the state, or its gradient, to its room; and back to memory."""
        before: list[BlockPass] = []
        behind: list[BlockPass] = []
        heads = self.blocks
        for state in self.loop.program.states:
            if self.loop.program.following[state.number] is state and not self.is_backward:
                continue
            role = Role.LEFT_GRADIENT if self.is_backward else Role.INITIAL_STATE
            name = self.arrays.take(array_name(role, state.number))
            part = state.width // heads
            memory = f"{name}[row * {state.width}{f' + head * {part}' if heads > 1 else ''} + j]"
            each = f"for (int j = threadIdx.x; j < {part}; j += THREADS)"
            if self.is_backward:
                room = self._room(ProgramBuffer(role, state.number, state.width, False), 0, 0)
                behind.append(
                    self._copy(room, part, f"{each} {memory} = {room.pointer}[j];", False)
                )
                value = memory
            else:
                room, value = self._state(state, 0), f"{name} ? {memory} : (REAL)0"
            before.append(self._copy(room, part, f"{each} {room.pointer}[j] = {value};", True))
        return before, behind

    def _copy(self, room: BlockPlace, width: int, line: str, writes: bool) -> BlockPass:
        first, end = room.column, room.column + width
        return BlockPass([line], [Touch(room.space or "", first, end, first, writes, (1,), None)])

    def _add_rooms(self, sums: int) -> None:
        """Cut shared memory into rooms; two of a state change places after each step."""
        self._room_lines = [f"REAL* const {SUMS} = rooms;"] if sums else []
        self.shared = sums
        for name, buffer in self._rooms.items():
            turns = name in self._two_rooms and name not in self._in_place
            for each in (name, name + BEFORE)[: 1 + turns]:
                const = "" if turns else "const "
                self._room_lines.append(f"REAL* {const}{each} = rooms + {self.shared};")
                self.shared += buffer.width // self.blocks
            if turns:
                self._step += [f"REAL* const {name}_left = {name};",
                               f"{name} = {name}{BEFORE};",
                               f"{name}{BEFORE} = {name}_left;"]  # fmt: skip
            elif name in self._in_place:
                self._room_lines.append(f"REAL* const {name}{BEFORE} = {name};")


def _room_name(buffer: ProgramBuffer) -> str:
    return f"{buffer.name.lower()}_room"


def _at(pointer: str, column: int) -> str:
    return f"({pointer} + {column})" if column else pointer
