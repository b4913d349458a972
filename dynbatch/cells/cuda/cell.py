"""`DeviceCell`: a compiled cell's loop for a GPU, and the plan of one of its steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from dynbatch.cells.cuda.emit import Kernel
from dynbatch.cells.cuda.lanes import Group, Item, items
from dynbatch.cells.cuda.places import Gradient, Places
from dynbatch.cells.cuda.tail import PRODUCTS, Tail
from dynbatch.cells.program import Op, Program, Value, readers
from dynbatch.cells.storage import Buffer
from dynbatch.kernels.cuda import source
from dynbatch.kernels.cuda.source import Source


@dataclass
class GroupKernels:
    """The kernels of one group; `backward` is None where no gradient passes."""

    forward: Kernel
    backward: Kernel | None = None


@dataclass
class MapGradient:
    """How a linear map of the loop passes its gradient to what it multiplied.

    adds: whether to what is there.
    """

    adds: bool


@dataclass
class GenericGradient:
    """For each input of an operator with kernels of its own: whether its gradient is added."""

    adds: list[bool] = field(default_factory=list)


class DeviceCell:
    """The loop of a cell, compiled for a GPU.

    Attributes:
        items:     a step, in order.
        exports, following: what leaves a step. Where an operator with kernels of its own makes it,
                   a copy leaves.
        places:    where values live.
        gradients: memory for gradients, by the identity of the base value.
        maps:      numbers of linear maps, by identity.
        inline_maps: those whose bias a group adds when it reads them, by their output.
        tail:      the kernels for a scan's last steps; None for a cell that has none.
        source:    the CUDA text; `name` is what its kernels' names begin with.
    """

    def __init__(self, program: Program, maps: dict[int, int]) -> None:
        self.program = program
        self.maps = maps
        self.width = sum([v.width for v in program.exports])
        copies: list[Op] = []
        generic = {id(op.output) for op in program.ops if op.kind == "generic"}
        self.exports = [_own(v, generic, copies) for v in program.exports]
        self.following = [_own(v, generic, copies) for v in program.following]
        self.items: list[Item] = items(program, copies)
        self.places = Places(program, self.items, self.exports, self.following)
        linear = [*program.stream_maps, *[op for op in program.ops if op.kind == "linear"]]
        self.inline_maps = {id(op.output): op for op in linear if self.places.bias_in_kernel(op)}
        self.gradients: dict[int, Gradient] = {}
        self.kernels: dict[int, GroupKernels] = {}
        self.map_gradients: dict[int, MapGradient] = {}
        self.generic_gradients: dict[int, GenericGradient] = {}
        self.stream_adds: dict[int, bool] = {}
        self._shared = _shared_gradients(program, self.items)
        self._emit()
        has_own = any([not isinstance(i, Group) and i.kind == "generic" for i in self.items])
        self.tail = None if has_own else Tail(self)
        self.name, self.source = self._source()

    def _source(self) -> tuple[str, Source]:
        """The name that kernels begin with, and all of them as one text for the compiler."""
        found = [k for pair in self.kernels.values() for k in (pair.forward, pair.backward) if k]
        text = "\n\n".join([kernel.text(kernel.role) for kernel in found])
        if self.tail is not None:
            text = "\n\n".join([PRODUCTS, text, *self.tail.texts("cell")])
        # Named by content: equal cells share their kernels, and compilers their caches.
        name = f"cell_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        for kernel in found:
            kernel.name = f"{name}_{kernel.role}"
        texts = [kernel.text(kernel.name) for kernel in found]
        if self.tail is not None:
            texts = [PRODUCTS, *texts, *self.tail.texts(name)]
        return name, source.join(f"{name}.cu", "\n\n".join(texts))

    def skips_zeros(self, op: Op) -> bool:
        """Whether a linear map is left out in the first step, where its state is all zeros."""
        return op.inputs[0].base.origin == "prev" and id(op.output) in self.inline_maps

    def is_shared(self, base: Value) -> bool:
        """Whether the gradient is equal to that of another value, and kept only there."""
        return id(base) in self._shared

    def gradient_of(self, base: Value) -> Gradient:
        """Memory for the gradient of a base value, made when it is first asked for."""
        base = self._shared.get(id(base), base)
        known = self.gradients.get(id(base))
        if known is None:
            known = self.gradients[id(base)] = Gradient(self._gradient_buffer(base))
        return known

    def find_gradient(self, base: Value) -> Gradient | None:
        """The same where any gradient was written."""
        found = self.gradients.get(id(self._shared.get(id(base), base)))
        return found if found is not None and found.written else None

    def _gradient_buffer(self, base: Value) -> Buffer:
        if base.origin == "stream":
            return Buffer(f"dX{base.place}", base.width, packed=True)
        if base.origin == "prev":
            return Buffer(f"N{base.place}", base.width, packed=False)
        for op in self.program.stream_maps:
            room = self.places.room_for_gradient(op) if op.output is base else None
            if room is not None:
                return room
        made = [op for op in [*self.program.stream_maps, *self.program.ops] if op.output is base]
        packed = made[0].kind == "linear"
        return Buffer(f"D{len(self.gradients)}", base.width, packed)

    # The plan of a step ---------------------------------------------------------------------------

    def _emit(self) -> None:
        for number, item in enumerate(self.items):
            if isinstance(item, Group):
                kernel = Kernel(self, f"forward_{number}")
                kernel.forward(item)
                self.kernels[number] = GroupKernels(kernel)
        for number in range(len(self.items) - 1, -1, -1):
            item = self.items[number]
            if isinstance(item, Group):
                kernel = Kernel(self, f"backward_{number}")
                kernel.backward(item)
                if kernel.width:
                    self.kernels[number].backward = kernel
            elif item.kind == "linear":
                self._emit_map(item)
            else:
                self._emit_generic(item)
        for op in self.program.stream_maps:
            if self.find_gradient(op.output) is not None:
                self._require_all(op.output)
                x = op.inputs[0]
                self.stream_adds[id(op)] = self.gradient_of(x.base).mode(x.column, x.width)
        for state in self.program.states:
            self.gradient_of(state)
            self._require_all(state)
        for stream in self.program.streams:
            if self.find_gradient(stream) is not None:
                self._require_all(stream)

    def _emit_map(self, op: Op) -> None:
        if self.find_gradient(op.output) is None:
            return
        self._require_all(op.output)
        (x,) = op.inputs
        self.map_gradients[id(op)] = MapGradient(self.gradient_of(x.base).mode(x.column, x.width))

    def _emit_generic(self, op: Op) -> None:
        if self.find_gradient(op.output) is None or not op.node.differentiable:
            return
        self._require_all(op.output)
        adds = [
            x.base.origin == "memory" or self.gradient_of(x.base).mode(x.column, x.width)
            for x in op.inputs
        ]
        self.generic_gradients[id(op)] = GenericGradient(adds)

    def _require_all(self, base: Value) -> None:
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
        for op in item.ops if isinstance(item, Group) else ():
            if op.kind != "binary" or op.node.kernel.name != "add":
                continue
            a, b = op.inputs
            bases = [x.base for x in (a, b) if id(x.base) in linear and x.is_whole()]
            alone = [base for base in bases if readers(program, base) == [op]]
            if len(alone) == 2 and a.base is not b.base:
                first, second = sorted(alone, key=lambda base: id(base) not in of_tokens)
                shared[id(second)] = first
    return shared
