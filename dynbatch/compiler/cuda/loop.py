"""`Loop`: a cell's loop laid out for a GPU: what a step runs, where values and gradients live."""

from __future__ import annotations

from dynbatch.compiler.buffers import ProgramBuffer
from dynbatch.compiler.cuda.lanes import Item, KernelGroup, items
from dynbatch.compiler.cuda.places import GradientSlot, Places
from dynbatch.compiler.program import Op, Program, Value, readers


class Loop:
    """The loop of a cell, before any text is written.

    Attributes:
        items:     a step, in order.
        exports, following: what leaves a step. Where an operator with kernels of its own makes it,
                   a copy leaves.
        width:     of all exports together.
        places:    where values live.
        gradients: memory for gradients, by the identity of the base value.
        maps:      numbers of linear maps, by identity.
        inline_maps: those whose bias a group adds when it reads them, by their output.

    Args:
        in_place: whether gradients may take the place of packed values.
    """

    def __init__(self, program: Program, maps: dict[int, int], in_place: bool = True) -> None:
        self.program = program
        self._in_place = in_place
        self.maps = maps
        self.width = sum([v.width for v in program.exports])
        copies: list[Op] = []
        generic = {id(op.output) for op in program.ops if op.kind == "generic"}
        self.exports = [_own(v, generic, copies) for v in program.exports]
        self.following = [_own(v, generic, copies) for v in program.following]
        self.items: list[Item] = items(program, copies)
        self.places = Places(program, self.items, self.exports, self.following)
        self.inline_maps = {
            id(op.output): op for op in self.linear if self.places.bias_in_kernel(op)
        }
        self.gradients: dict[int, GradientSlot] = {}
        self._shared = _shared_gradients(program, self.items)

    @property
    def linear(self) -> list[Op]:
        """Every linear map: of the tokens, then of the loop."""
        program = self.program
        return [*program.stream_maps, *[op for op in program.ops if op.kind == "linear"]]

    @property
    def generic(self) -> list[Op]:
        """Operators with kernels of their own."""
        return [op for op in self.program.ops if op.kind == "generic"]

    def skips_zeros(self, op: Op) -> bool:
        """Whether a linear map is left out in the first step, where its state is all zeros."""
        return op.inputs[0].base.origin == "prev" and id(op.output) in self.inline_maps

    def is_shared(self, base: Value) -> bool:
        """Whether the gradient is equal to that of another value, and kept only there."""
        return id(base) in self._shared

    @property
    def spoils_values(self) -> bool:
        """Whether a gradient in the place of values is not written in all its columns."""
        return any([g.cleared and g.buffer.name[0] == "P" for g in self.gradients.values()])

    def gradient_of(self, base: Value) -> GradientSlot:
        """Memory for the gradient of a base value, made when it is first asked for."""
        base = self._shared.get(id(base), base)
        known = self.gradients.get(id(base))
        if known is None:
            known = self.gradients[id(base)] = GradientSlot(self._gradient_buffer(base))
        return known

    def find_gradient(self, base: Value) -> GradientSlot | None:
        """The same where any gradient was written."""
        found = self.gradients.get(id(self._shared.get(id(base), base)))
        return found if found is not None and found.written else None

    def _gradient_buffer(self, base: Value) -> ProgramBuffer:
        if base.origin == "stream":
            return ProgramBuffer(f"dX{base.place}", base.width, packed=True)
        if base.origin == "prev":
            return ProgramBuffer(f"N{base.place}", base.width, packed=False)
        for op in self.program.stream_maps if self._in_place else ():
            room = self.places.room_for_gradient(op) if op.output is base else None
            if room is not None:
                return room
        made = [op for op in [*self.program.stream_maps, *self.program.ops] if op.output is base]
        packed = made[0].kind == "linear"
        return ProgramBuffer(f"D{len(self.gradients)}", base.width, packed)

    def require_all(self, base: Value) -> None:
        """What no writer has reached must be zeros."""
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
    op = Op("copy", [value], copy)
    op.columns = [0]
    copies.append(op)
    return copy


def _shared_gradients(program: Program, order: list[Item]) -> dict[int, Value]:
    """Linear maps whose outputs are added to another's and read by nothing else: one gradient."""
    of_tokens = {id(op.output) for op in program.stream_maps}
    linear = of_tokens | {id(op.output) for op in program.ops if op.kind == "linear"}
    shared: dict[int, Value] = {}
    for item in order:
        for op in item.ops if isinstance(item, KernelGroup) else ():
            if op.kind != "binary" or op.node.kernel.name != "add":
                continue
            a, b = op.inputs
            bases = [x.base for x in (a, b) if id(x.base) in linear and x.is_whole()]
            alone = [base for base in bases if readers(program, base) == [op]]
            if len(alone) == 2 and a.base is not b.base:
                first, second = sorted(alone, key=lambda base: id(base) not in of_tokens)
                shared[id(second)] = first
    return shared
