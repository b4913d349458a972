"""`DeviceCell`: a compiled cell's loop for a GPU."""

from __future__ import annotations

import hashlib

from dynbatch.compiler.cuda.kernels import LoopKernels
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.persistent import PRODUCTS, Tail
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.kernels.cuda.runtime import source


class DeviceCell:
    """The loop of a cell, compiled for a GPU.

    Attributes:
        loop:    what a step runs, and where everything lives.
        kernels: of its groups.
        tail:    the kernels for a scan's last steps; None for a cell that has none.
        name:    what the names of its kernels begin with.
        source:  their CUDA text.
    """

    def __init__(self, program: LoopProgram, maps: dict[int, int]) -> None:
        self.loop = Loop(program, maps)
        self.kernels = LoopKernels(self.loop)
        if self.loop.spoils_values:
            self.loop = Loop(program, maps, in_place=False)
            self.kernels = LoopKernels(self.loop)
        self.tail = None if self.loop.generic else Tail(self.kernels)
        # Named by content: equal cells share their kernels, and compilers their caches.
        digest = hashlib.sha256(self._text("cell").encode()).hexdigest()
        self.name = f"cell_{digest[:16]}"
        self.source = source.join(f"{self.name}.cu", self._text(self.name))

    def _text(self, name: str) -> str:
        texts = []
        for kernel in self.kernels.all():
            kernel.name = f"{name}_{kernel.stem}"
            texts.append(kernel.text())
        if self.tail is not None:
            texts = [PRODUCTS, *texts, *self.tail.texts(name)]
        return "\n\n".join(texts)
