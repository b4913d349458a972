"""`DeviceCell`: a compiled cell's loop for a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dynbatch.backend import DType
from dynbatch.compiler.cuda import fused_product
from dynbatch.compiler.cuda.across_steps import ProductAcrossSteps, product_across_steps
from dynbatch.compiler.cuda.by_sentence import SentenceKernel
from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.fused_product import FusedProduct, fused_products
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.cuda.persistent import LastSteps, Tail
from dynbatch.compiler.heads import heads_of
from dynbatch.compiler.ir import Op
from dynbatch.compiler.lanes import KernelGroup
from dynbatch.errors import GraphError
from dynbatch.kernels.printed import CudaSource, join
from dynbatch.kernels.runtime.device_loops import queue
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS, of_products

Items = Sequence[Op | Kernel]


class PassOnDevice:
    """The work of a step of one pass.

    Attributes:
        groups: the kernels of its groups, by the number of the item. A group whose results all lie
                where it found them has none.
        fused:  the kernels that make products, most with a group.
        items:  these groups, and products as operators, in order.
        few:    the same with `fused`, for few rows.
        across: of backward, the last of `few` and the first of the step that runs next in one.
    """

    def __init__(self, loop: Loop, step: DevicePass, name: str) -> None:
        self.groups = {
            number: Kernel(loop, f"{name}_{number}", step, number)
            for number, item in enumerate(step.items)
            if isinstance(item, KernelGroup)
        }
        self.groups = {number: kernel for number, kernel in self.groups.items() if kernel.lanes}
        self.fused = fused_products(loop, step, name)
        self.items = self._items(step, [])
        self.few = self._items(step, self.fused)
        self.across: ProductAcrossSteps | None = None
        goes_back = step is loop.backward and bool(loop.program.states)
        if goes_back and self.fused and self.few[-1] is self.fused[-1]:
            self.across = product_across_steps(loop, step)

    def items_of_few(self, goes_on: bool, is_followed: bool) -> Items:
        """The items of a step of few rows.

        Args:
            goes_on:     it does the last products of the step before it, too.
            is_followed: the step behind does its last products.
        """
        first: Items = [self.across] if goes_on and self.across else self.few[:1]
        return [*first, *self.few[1 : len(self.few) - is_followed]]

    def _items(self, step: DevicePass, fused: Sequence[FusedProduct]) -> Items:
        items: dict[int, Op | Kernel] = {
            number: item for number, item in enumerate(step.items) if isinstance(item, Op)
        }
        items |= self.groups
        for kernel in fused:
            for number in range(kernel.first, kernel.last + 1):
                items.pop(number, None)
            items[kernel.first] = kernel
        return [items[number] for number in sorted(items)]


class DeviceCell:
    """The loop of a cell, compiled for a GPU.

    Attributes:
        loop:   what a step runs, and where everything lives.
        forward, backward: both passes.
        tails:  the kernels for a scan's last steps, forward and back; none for a cell with
                operators that have their own kernels, or without a state. Of matrices, all steps.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.forward = PassOnDevice(loop, loop.forward, "forward")
        self.backward = PassOnDevice(loop, loop.backward, "backward")
        self.tails = self._tails()
        self._sources: dict[str, CudaSource] = {}

    @property
    def name(self) -> str:
        """The prefix of its kernels' names."""
        return self.source.name.removesuffix(".cu")

    @property
    def source(self) -> CudaSource:
        """The CUDA text of its kernels, in the precision of products that the run wants."""
        precision = of_products()
        if precision not in self._sources:
            # Named by content: equal cells share their kernels, and compilers their caches.
            digest = hashlib.sha256(self._text("cell", precision).encode()).hexdigest()
            name = f"cell_{digest[:16]}"
            self._sources[precision] = join(f"{name}.cu", self._text(name, precision))
        return self._sources[precision]

    def is_few(self, rows: int, itemsize: int) -> bool:
        """Whether a step of so many rows runs fused products."""
        weight_bytes = self.loop.weights * itemsize
        return rows <= fused_product.FEW_ROWS and weight_bytes <= fused_product.WEIGHT_BYTES

    def _tails(self) -> Sequence[LastSteps]:
        loop = self.loop
        if not loop.program.states or loop.program.generic:
            return []
        passes = ((loop.forward, self.forward), (loop.backward, self.backward))
        return [Tail(loop, step, each.groups) for step, each in passes]

    def _text(self, name: str, precision: str) -> str:
        passes = (self.forward, self.backward)
        kernels: list[Kernel] = [k for each in passes for k in each.groups.values()]
        kernels += [kernel for each in passes for kernel in each.fused]
        kernels += filter(None, [self.backward.across])
        bits = MANTISSA_BITS[precision]
        heads = [] if precision == FULL else [f"#define FACTOR_BITS {bits}\n"]
        heads += ['#include "tile_product.cuh"\n'] if self.forward.fused else []
        heads += [tail.ahead for tail in self.tails[:1]]
        tails = [tail.text(name) for tail in self.tails]
        return "\n\n".join([*heads, *[kernel.text(name) for kernel in kernels], *tails])


class SentenceCell(DeviceCell):
    """The loop of a cell whose states are matrices: each pass is one launch."""

    tails: list[SentenceKernel]

    def require_room(self, name: str, dtype: DType) -> None:
        """Raise `GraphError` if a block has too little shared memory on this device."""
        size = max([kernel.shared_bytes(dtype.itemsize) for kernel in self.tails])
        most = queue().most_shared_bytes
        if size > most:
            raise GraphError.at_caller(
                f"{name}: a step with matrices, on a GPU, of which a block has {most:,} bytes of "
                f"shared memory; it needs {size:,}.\n"
                "  rule: a block holds the state of a head, or of all where heads meet\n"
                '  fix:  smaller matrices, heads that do not meet, float32, or db.Graph("cpu")'
            )

    def _tails(self) -> list[SentenceKernel]:
        loop = self.loop
        kernels = [SentenceKernel(loop, is_backward) for is_backward in (False, True)]
        storages = [loop.storage, loop.gradients]
        heads = heads_of(loop.backward_program, storages, [each.items for each in kernels])
        for kernel in kernels:
            kernel.print_for(heads)
        return kernels
