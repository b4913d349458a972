"""The kernels of a loop, and the order in which its gradients are written."""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, Origin
from dynbatch.compiler.lanes import KernelGroup


@dataclass
class KernelPair:
    """The kernels of one group; `backward` is None where no gradient passes."""

    forward: Kernel
    backward: Kernel | None = None


class LoopKernels:
    """A kernel forward and one backward for each group of a loop.

    Printing them in the order of backward also decides which one writes each gradient first.

    Attributes:
        groups:       by the number of the item.
        map_adds:     for linear maps of the loop through which a gradient passes, by identity:
                      whether it is added to what is there.
        generic_adds: the same for each input of an operator with kernels of its own.
        stream_adds:  the same for linear maps of the tokens, which come last.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.groups: dict[int, KernelPair] = {}
        self.map_adds: dict[int, bool] = {}
        self.generic_adds: dict[int, list[bool]] = {}
        self.stream_adds: dict[int, bool] = {}
        for number, item in enumerate(loop.items):
            if isinstance(item, KernelGroup):
                kernel = Kernel(loop, f"forward_{number}")
                kernel.forward(item)
                self.groups[number] = KernelPair(kernel)
        for number in range(len(loop.items) - 1, -1, -1):
            item = loop.items[number]
            if isinstance(item, KernelGroup):
                kernel = Kernel(loop, f"backward_{number}")
                kernel.backward(item)
                if kernel.width:
                    self.groups[number].backward = kernel
            elif item.is_linear:
                self._settle_map(item, self.map_adds)
            else:
                self._settle_generic(item)
        for op in loop.program.stream_maps:
            self._settle_map(op, self.stream_adds)
        for state in loop.program.states:
            loop.gradient_of(state)
            loop.require_all(state)
        for stream in loop.program.streams:
            if loop.find_gradient(stream) is not None:
                loop.require_all(stream)

    def all(self) -> list[Kernel]:
        """Every kernel."""
        pairs = self.groups.values()
        return [kernel for pair in pairs for kernel in (pair.forward, pair.backward) if kernel]

    def _settle_map(self, op: Op, adds: dict[int, bool]) -> None:
        loop, (x,) = self.loop, op.inputs
        if loop.find_gradient(op.output) is not None:
            loop.require_all(op.output)
            adds[id(op)] = loop.gradient_of(x.base).mode(x.column, x.width)

    def _settle_generic(self, op: Op) -> None:
        loop = self.loop
        if loop.find_gradient(op.output) is not None and op.node.differentiable:
            loop.require_all(op.output)
            self.generic_adds[id(op)] = [
                x.base.origin is Origin.MEMORY or loop.gradient_of(x.base).mode(x.column, x.width)
                for x in op.inputs
            ]
