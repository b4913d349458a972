"""`DeviceCell`: a compiled cell's loop for a GPU."""

from __future__ import annotations

import hashlib

from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.cuda.persistent import PRODUCTS, Tail
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.lanes import KernelGroup
from dynbatch.kernels.cuda.runtime import source


class DeviceCell:
    """The loop of a cell, compiled for a GPU.

    Attributes:
        loop:   what a step runs, and where everything lives.
        forward, backward: the kernels of each pass's groups, by the number of the item. A group
                whose results all lie where it found them has none.
        tails:  the kernels for a scan's last steps, forward and back; none for a cell with
                operators that have their own kernels.
        name:   what the names of its kernels begin with.
        source: their CUDA text.
    """

    def __init__(self, backward: BackwardProgram) -> None:
        self.loop = loop = Loop(backward)
        self.forward = _kernels(loop, loop.forward, "forward")
        self.backward = _kernels(loop, loop.backward, "backward")
        self.tails: list[Tail] = []
        if not loop.program.generic:
            passes = ((loop.forward, self.forward), (loop.backward, self.backward))
            self.tails = [Tail(loop, step, kernels) for step, kernels in passes]
        # Named by content: equal cells share their kernels, and compilers their caches.
        digest = hashlib.sha256(self._text("cell").encode()).hexdigest()
        self.name = f"cell_{digest[:16]}"
        self.source = source.join(f"{self.name}.cu", self._text(self.name))

    def _text(self, name: str) -> str:
        kernels: list[Kernel | Tail] = [*self.forward.values(), *self.backward.values()]
        kernels += self.tails
        texts = [kernel.text(name) for kernel in kernels]
        return "\n\n".join([PRODUCTS, *texts] if self.tails else texts)


def _kernels(loop: Loop, step: DevicePass, name: str) -> dict[int, Kernel]:
    kernels = {
        number: Kernel(loop, f"{name}_{number}", step, number)
        for number, item in enumerate(step.items)
        if isinstance(item, KernelGroup)
    }
    return {number: kernel for number, kernel in kernels.items() if kernel.lanes}
