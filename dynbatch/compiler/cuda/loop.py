"""`Loop`: a cell's loop for a GPU: the items of a step, buffers of values and gradients."""

from __future__ import annotations

from dynbatch.compiler.buffers import ProgramBuffer, Role
from dynbatch.compiler.cuda.buffers import DeviceStorage, GradientSlot
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lanes import Item, items, ops_of
from dynbatch.compiler.lowering import LoopProgram


class Loop:
    """The loop of a cell for a GPU, before its kernels are printed.

    Attributes:
        items:     a step, in order.
        exports, following: what leaves a step. Where an operator with kernels of its own makes it,
                   a copy leaves.
        width:     of all exports together.
        storage:   where values live.
        gradients: memory for gradients, by the identity of the base value.
        maps:      numbers of linear maps, by identity.
        inline_maps: those whose bias a group adds when it reads them, by their output.

    Args:
        in_place: whether gradients may take the place of packed values.
    """

    def __init__(self, program: LoopProgram, maps: dict[int, int], in_place: bool = True) -> None:
        self.program = program
        self._in_place = in_place
        self.maps = maps
        self.width = sum([v.width for v in program.exports])
        copies: list[Op] = []
        generic = {id(op.output) for op in program.generic}
        self.exports = [_own(v, generic, copies) for v in program.exports]
        self.following = [_own(v, generic, copies) for v in program.following]
        self.items: list[Item] = items(program, copies)
        self.storage = DeviceStorage(program, self.items, self.exports, self.following)
        self.inline_maps = {
            id(op.output): op for op in self.linear if self.storage.bias_in_kernel(op)
        }
        self.gradients: dict[int, GradientSlot] = {}
        self._shared = _shared_gradients(program, self.items)

    @property
    def linear(self) -> list[Op]:
        """Every linear map: of the tokens, then of the loop."""
        return self.program.linear_maps

    @property
    def generic(self) -> list[Op]:
        """Operators with kernels of their own."""
        return self.program.generic

    def skips_zeros(self, op: Op) -> bool:
        """Whether a linear map is left out in the first step, where its state is all zeros."""
        return op.inputs[0].base.origin is Origin.STATE and id(op.output) in self.inline_maps

    def is_shared(self, base: Value) -> bool:
        """Whether the gradient is equal to that of another value, and kept only there."""
        return id(base) in self._shared

    @property
    def spoils_values(self) -> bool:
        """Whether a gradient that replaces values misses some of their columns."""
        return any([g.cleared and g.buffer.role is Role.PACKED for g in self.gradients.values()])

    def gradient_of(self, base: Value) -> GradientSlot:
        """Memory for the gradient of a base value, made when it is first asked for."""
        base = self._shared.get(id(base), base)
        known = self.gradients.get(id(base))
        if known is None:
            known = self.gradients[id(base)] = GradientSlot(self._gradient_buffer(base))
        return known

    def find_gradient(self, base: Value) -> GradientSlot | None:
        """Memory for the gradient of a base value if anything was written there."""
        slot = self.gradients.get(id(self._shared.get(id(base), base)))
        return slot if slot is not None and slot.written else None

    def _gradient_buffer(self, base: Value) -> ProgramBuffer:
        if base.origin is Origin.STREAM:
            return ProgramBuffer(Role.STREAM_GRADIENT, base.number, base.width, packed=True)
        if base.origin is Origin.STATE:
            return ProgramBuffer(Role.FOUND_GRADIENT, base.number, base.width, packed=False)
        for op in self.program.stream_maps if self._in_place else ():
            room = self.storage.room_for_gradient(op) if op.output is base else None
            if room is not None:
                return room
        packed = any([op.output is base for op in self.program.linear_maps])
        return ProgramBuffer(Role.GRADIENT, len(self.gradients), base.width, packed)

    def require_all(self, base: Value) -> None:
        """Have a gradient zeroed before the step if its writers do not cover all columns."""
        memory = self.gradient_of(base)
        end = 0
        for first, last in sorted(memory.written):
            end = max(end, last) if first <= end else end
        if end < base.width:
            memory.cleared = True


def _own(value: Value, generic: set[int], copies: list[Op]) -> Value:
    if id(value.base) not in generic:
        return value
    copy = Value(value.width)
    copies.append(Op.copy(value, copy))
    return copy


def _shared_gradients(program: LoopProgram, order: list[Item]) -> dict[int, Value]:
    """Linear maps whose outputs are only added to another's: they share one gradient."""
    of_tokens = {id(op.output) for op in program.stream_maps}
    linear = {id(op.output) for op in program.linear_maps}
    shared: dict[int, Value] = {}
    for op in [op for item in order for op in ops_of(item) if op.is_add]:
        a, b = op.inputs
        bases = [x.base for x in (a, b) if id(x.base) in linear and x.is_whole()]
        alone = [base for base in bases if program.readers(base) == [op]]
        if len(alone) == 2 and a.base is not b.base:
            first, second = sorted(alone, key=lambda base: id(base) not in of_tokens)
            shared[id(second)] = first
    return shared
