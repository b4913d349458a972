"""Runs the last steps of a scan, when few sentences are left, or all of them, in one launch.

Two launches a step cost the host more than a few rows cost the device. So from the step on where
at most `TAIL_ROWS` sentences run, one kernel runs all that is left: a block takes one sentence
through its steps, products included, and no block waits for another. Forward it comes last,
backward first. A cell with operators that have kernels of their own has no tail.

A block reads all weights of the loop in every step, from the second-level cache, and a
multiprocessor gets 64 bytes a clock from there: 112 GB/s on an H100. A step of `fused_product`,
whose blocks share the weights, should take about 4 µs, and a tail's some 1.5 µs besides reading.
That leaves 2.5 µs, or 280 kB: `TAIL_BYTES`, an LSTM of 128. The weights of one of 256, 1 MiB, take
9.4 µs. Scans side by side share the launch: 32 blocks of two directions read 3.6 TB/s together,
which that cache should give.

With `TAIL_ROWS` of as many sentences as a mini-batch has, each pass of a whole scan is one launch
for both directions. Where the host is the slower, that may pay for larger weights, too: it is off
until it has been measured. Both limits are calculated, not measured (`benchmarks/gpu/switches.py`).
"""

from __future__ import annotations

from typing import Protocol

from dynbatch.compiler.buffers import Role
from dynbatch.compiler.cuda.emit import STEP, Arrays, Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.ir import Op
from dynbatch.compiler.lanes import KernelGroup

TAIL_ROWS = 16
TAIL_BYTES = 256 << 10
THREADS = 512  # as in row_products.cuh


class LastSteps(Protocol):
    """The text of a kernel that runs the last steps of a pass.

    Attributes:
        name:    of the kernel within its cell.
        arrays:  what it takes.
        ahead:   the text of what such kernels share.
        threads: of a block.
        blocks:  for a sentence.
        shared:  elements of dynamic shared memory of a block.
        asks:    whether its last argument says that backward follows.
    """

    name: str
    arrays: Arrays
    ahead: str
    threads: int
    blocks: int
    shared: int
    asks: bool

    def text(self, prefix: str) -> str:
        """The whole kernel; its name follows the prefix."""

    def most_rows(self, itemsize: int) -> float:
        """The sentences from which on it runs all steps that are left."""


class Tail:
    """The text of the tail kernel of one pass: see `LastSteps`.

    Args:
        kernels: of the pass's groups, by the number of the item.
    """

    threads, blocks, shared, asks = THREADS, 1, 0, False

    def __init__(self, loop: Loop, step: DevicePass, kernels: dict[int, Kernel]) -> None:
        self.ahead = '#include "row_products.cuh"\n'
        self.loop = loop
        self.is_backward = step is loop.backward
        self.name = "tail_backward" if self.is_backward else "tail"
        self.arrays = Arrays(loop)
        for pair in loop.carried if self.is_backward else ():
            list(map(self.arrays.take, pair))
        self._lines: list[str] = []
        for number, item in enumerate(step.items):
            if not isinstance(item, KernelGroup):
                self._lines += self._product(item)
            elif number in kernels:
                self._lines += [*self._group(kernels[number]), "__syncthreads();"]

    def most_rows(self, itemsize: int) -> float:
        return TAIL_ROWS if self.loop.weights * itemsize <= TAIL_BYTES else 0

    def text(self, prefix: str) -> str:
        steps, shared = "for (int t = first; t < last; ++t) {", ""
        name_of = {name: name for name in self.arrays.names}
        turns: list[str] = []
        if self.is_backward:
            steps = "for (int t = last - 1; t >= first; --t) {"
            shared = "    __shared__ REAL partial[THREADS_OF_TAIL];"
            for pair in self.loop.carried:  # these change places
                name_of |= {name: f"{name}_given" for name in pair}
                for name, other in zip(pair, pair[::-1], strict=True):
                    chosen = f"(last - 1 - t) & 1 ? {other}_given : {name}_given"
                    turns.append(f"    REAL* const {name} = {chosen};")
        names = [*name_of.values()]
        body = [
            steps,
            f"    {STEP}",
            *turns,
            "    if (row >= n) continue;  // the same for the whole block",
            *[f"    {line}" for line in self._lines],
            "}",
        ]
        lines = [
            'extern "C" __global__ void __launch_bounds__(THREADS_OF_TAIL, 1) '
            f"{prefix}_{self.name}({self.arrays.parameters(names)}const int* steps, "
            "int first, int last) {",
            "    const long long row = blockIdx.x;",
            shared,
            *[f"    {line}" for line in self.arrays.in_shared(body, names)],
            "}",
        ]
        return "\n".join(filter(None, lines))

    def _group(self, kernel: Kernel) -> list[str]:
        for name in kernel.arrays.names:
            self.arrays.take(name)
        lines: list[str] = []
        for width, body in kernel.lanes:
            loop = f"for (int j = threadIdx.x; j < {width}; j += THREADS_OF_TAIL) {{"
            lines += [loop, *[f"    {line}" for line in body], "}"]
        return lines

    def _product(self, op: Op) -> list[str]:
        """y = x W (+ b), or dx = (d +) dy W, after which all threads have met."""
        loop, arrays = self.loop, self.arrays
        x, *base = [arrays.address(value) for value in op.inputs]
        source, out = op.source or op, arrays.address(op.output)
        number = loop.maps[id(source)]
        weight = arrays.name(Role.WEIGHT, number)
        inner, width = source.inputs[0].width, source.output.width
        if op.is_linear:
            has_bias = op.has_bias and id(op.output) not in loop.inline_maps
            bias = arrays.name(Role.BIAS, number) if has_bias else "nullptr"
            call = f"multiply_row({x}, {weight}, {inner}, {width}, {bias}, {out});"
        else:
            added = "".join(base) or "nullptr"
            call = f"multiply_back({x}, {weight}, {inner}, {width}, {added}, {out}, partial);"
        if source.reads_state and (not op.is_linear or loop.skips_zeros(op)):
            initial = arrays.name(Role.INITIAL_STATE, source.inputs[0].base.number)
            call = f"if (p >= 0 || {initial}) {call}"
        return [call, "__syncthreads();"] if op.is_linear else [call]
