"""`DeviceStorage`: buffers for what one kernel of a step leaves to another, or to another pass."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.buffers import (
    ProgramBuffer,
    Role,
    Storage,
    fixed_places,
    read_after,
)
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lanes import FUSED, loaded, ops_of
from dynbatch.compiler.lifetimes import Lifetimes
from dynbatch.compiler.program import Program


class LaneLifetimes(Lifetimes):
    """Times at which values are made and read, item by item, an item's lanes at once.

    A lane loads an element's operands before it stores what it makes of them. Products that one
    kernel can do together, with the group behind them, are read until its end.
    """

    def __init__(self, step: DevicePass, kept: Sequence[Value]) -> None:
        self._items = [*step.ahead, *step.items]
        self._multiplied: dict[int, set[int]] = {}  # by the end of a run: its factors
        super().__init__(step, kept)
        for run in step.runs:
            end = len(step.ahead) + run.end
            factors = [op.inputs[0] for op in step.products(run)]
            self._multiplied[end] = {id(x.base) for x in factors}
            for x in factors:
                self._read[id(x.base)].append((end, x))

    def _timed(self, program: Program) -> list[tuple[int, Op]]:
        return [(at, op) for at, item in enumerate(self._items) for op in ops_of(item)]

    def _overwrites(self, made: Value, x: Value, offset: int) -> bool:
        at = self._position(made)
        item = self._items[at]
        if id(x.base) in self._multiplied.get(at, ()):
            return False
        if isinstance(item, Op):  # a product may be added to its second operand
            is_base = item.opcode is OpCode.LINEAR_GRADIENT and x in item.inputs[1:]
            return is_base and offset == 0 and x.width == made.width
        for lane in item.lanes:
            stored = {scalar.output.key: scalar.output.width for scalar in lane.ops}
            for read in loaded(lane, [s for op in lane.ops for s in op.inputs]):
                at = read.column - x.column + offset
                if read.base is x.base and at < made.width and at + read.width > 0:
                    if stored.get((id(made), at)) != read.width:
                        return False
        return True


class DeviceStorage(Storage):
    """Buffers of a pass on a GPU, rows x width each; all other values stay in registers.

    Args:
        packed: values that are read after the step, each with a row for every token.
        before: the buffers of forward, in whose columns backward may write when these are read.
        lasting: values there that are read after the loop.
    """

    def __init__(
        self, step: DevicePass, packed: Sequence[Value],
        fixed: Sequence[tuple[Value, ProgramBuffer, int]] = (), results: Sequence[Value] = (),
        roles: tuple[Role, Role] = (Role.PACKED, Role.TEMPORARY),
        before: Storage | None = None, lasting: Sequence[Value] = (), overwrites: bool = True,
    ) -> None:  # fmt: skip
        self._rooms = before.packed if before else []
        held = [(v, *before.buffer_of(v)) for b in self._rooms for v in b.values] if before else []
        self._in_registers = {
            id(op.output)
            for number, item in enumerate(step.items)
            for op in ops_of(item)
            if op.opcode in FUSED and not step.leaves(op.output, number)
        }
        lives = LaneLifetimes(step, [*step.kept, *lasting])
        super().__init__(step, packed, [*held, *fixed], results, roles, lives, overwrites)

    def _whole_rows(self, program: Program) -> set[int]:
        """Rows read whole by own kernels, gradients too, unless they may be part of wider rows."""
        whole = {id(op.output) for op in program.ops if op.opcode is OpCode.GENERIC}
        for op in program.ops:
            if op.opcode is OpCode.GENERIC_GRADIENT and op.source is not None:
                numbers = [k for k, x in enumerate(op.source.inputs)
                         if x.base.origin is not Origin.MEMORY]  # fmt: skip
                strided, dy = op.source.node.strided(), op.inputs[0]
                made = zip(numbers, op.outputs, strict=True)
                whole |= {id(value) for position, value in made if position not in strided}
                whole |= {id(dy.base)} - {id(value.base) for value in self.kept}
        return whole

    def _fits(self, value: Value, buffer: ProgramBuffer, column: int) -> bool:
        if buffer.role is Role.STREAM_GRADIENT:  # it has no array where nobody wants it
            return False
        if id(value) in self._in_registers and not buffer.packed:
            return False
        return super()._fits(value, buffer, column)

    def _new(self, value: Value, packed: bool) -> None:
        if id(value) in self._in_registers:
            return
        for room in self._rooms if packed else ():
            if self._fits(value, room, 0):
                self._put(value, room, 0)
                return
        super()._new(value, packed)

    def _put(self, value: Value, buffer: ProgramBuffer, column: int) -> None:
        if id(value) not in self._in_registers:
            super()._put(value, buffer, column)
        else:  # what is made of it may lie there
            self._columns[id(value)] = (buffer, column)


def gradient_storage_of(
    step: DevicePass, program: BackwardProgram, forward: DeviceStorage, overwrites: bool = True
) -> DeviceStorage:
    """The buffers of backward: those that forward left too where it `overwrites` them."""
    return DeviceStorage(
        step, program.packed_results(), fixed_places(program, Role.FOUND_GRADIENT),
        [*program.of_maps.values()], (Role.GRADIENT, Role.TEMPORARY_GRADIENT),
        forward if overwrites else None, read_after(program.forward, program), overwrites,
    )  # fmt: skip
