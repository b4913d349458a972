"""`LoopGraphs`: steps of prepared loops as CUDA graphs. Off by default: not run on a card.

A launch costs the host some microseconds, a launch within a graph none. But a graph holds grids and
arguments as they were captured, and these differ from step to step and from mini-batch to
mini-batch. So what is captured are kernels that find their arguments in memory
(`source.of_steps`): a table has a row for each step, and the graph counts the steps itself.

    begin_steps(place, table)
    for every STEPS steps:  graph.launch()      each kernel of each step; advance_steps(place)

A graph has the grids of a bucket, powers of two, and serves every mini-batch of the loop whose
steps fit: the table says how many of the blocks have work. CuPy lets no product of cuBLAS be
captured, so a loop that has one is started as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.cupy_types import CudaGraph, CupyModule, MemoryPointer
from dynbatch.kernels.cuda.runtime.launch import Dimensions, Kernels, Launch, no_table
from dynbatch.kernels.cuda.runtime.packing import HEADER_WORDS, POINTER
from dynbatch.kernels.cuda.runtime.staging import Staging, Upload

STEPS = 0
"""Steps in a graph, 8 say; 0 for no graphs."""

PLACE_BYTES = 16  # of the table's address and the step, in device memory


class StepKernel(NamedTuple):
    """A kernel of a step in a graph.

    first: its first word in a row of the table.
    """

    name: str
    grid: Dimensions
    block: Dimensions
    shared: int
    first: int


class GraphItem(Protocol):
    """The interface of a loop's kernel; implemented by `loop.KernelItem`."""

    @property
    def kernels(self) -> Kernels: ...
    @property
    def name(self) -> str: ...
    @property
    def grid(self) -> tuple[int | Array, ...]: ...
    @property
    def block(self) -> tuple[int | Array, ...]: ...
    @property
    def shared(self) -> int: ...
    @property
    def words(self) -> Array: ...


class LoopGraphs:
    """The graphs of one queue.

    Attributes:
        captured: graphs that were made.
        uploaded_bytes: of the tables of arguments.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._staging = Staging(cupy)
        self._places: dict[int, MemoryPointer] = {}  # of the loop that runs on a stream
        self._graphs: dict[tuple[object, ...], CudaGraph] = {}
        self.captured = 0
        self.uploaded_bytes = 0

    def start(self, items: Sequence[GraphItem], present: Sequence[Array], stream: int) -> None:
        """Start all steps of a loop, on the current stream.

        Args:
            items:   its kernels, whose `words` are complete.
            present: of each, the steps in which it runs.
            stream:  the address of the stream.
        """
        kernels, steps = items[0].kernels, STEPS
        count = -(-present[0].size // steps) * steps
        firsts, words = self._layout(items)
        table = np.zeros((count, words), POINTER)
        for item, runs, first in zip(items, present, firsts, strict=True):
            table[: runs.size, first] = np.where(runs, item.grid[0], 0)
            arguments = item.words[:, HEADER_WORDS:]
            table[: runs.size, first + 1 : first + 1 + arguments.shape[1]] = arguments
        place = self._place(stream)
        staged = self._staging.put(table, POINTER)
        try:
            upload = self._staging.upload()
            self.uploaded_bytes += upload.copied
            _launch(kernels, "begin_steps", (place, upload.base + staged), stream)
            for t in range(0, count, steps):
                blocks = table[t : t + steps, list(firsts)].max(axis=0)
                found = [
                    StepKernel(
                        item.name, (_bucket(int(most)), *map(_fixed, item.grid[1:])),
                        tuple(map(_fixed, item.block)), item.shared, first,
                    )
                    for item, most, first in zip(items, blocks, firsts, strict=True)
                ]  # fmt: skip
                self._graph(kernels, place, tuple(found), words).launch()
                kernels.launches["graph"] += 1
        finally:
            self._staging.done()

    @staticmethod
    def _layout(items: Sequence[GraphItem]) -> tuple[Sequence[int], int]:
        """The first word of each item in a row, and the words of a row."""
        ends = np.cumsum([1 + item.words.shape[1] - HEADER_WORDS for item in items])
        return [0, *ends[:-1].tolist()], int(ends[-1])

    def _place(self, stream: int) -> int:
        if stream not in self._places:
            self._places[stream] = self._cupy.cuda.alloc(PLACE_BYTES)
        return self._places[stream].ptr

    def _graph(
        self, kernels: Kernels, place: int, found: tuple[StepKernel, ...], words: int
    ) -> CudaGraph:
        """The graph of STEPS steps with these kernels, captured when it is first wanted."""
        key = (kernels, place, found, words, STEPS)
        if key not in self._graphs:
            for kernel in found:  # compiled and loaded before anything is captured
                kernels.of_steps(kernel.name).allow(kernel.shared)
            kernels.loaded("advance_steps")
            counted = kernels.launches.copy()  # which the graph's kernels are not
            capturing = self._cupy.cuda.Stream(non_blocking=True)
            with capturing:
                capturing.begin_capture()
                try:
                    for step in range(STEPS):
                        for name, grid, block, shared, first in found:
                            args = (place, step, first, words)
                            name = f"{name}_of_step"
                            _launch(kernels, name, args, capturing.ptr, grid, block, shared)
                    _launch(kernels, "advance_steps", (place, STEPS), capturing.ptr)
                finally:
                    graph = capturing.end_capture()
            kernels.launches.clear()
            kernels.launches.update(counted)
            self._graphs[key] = graph
            self.captured += 1
        return self._graphs[key]


def _launch(
    kernels: Kernels,
    name: str,
    args: tuple[int, ...],
    stream: int,
    grid: Dimensions = (1,),
    block: Dimensions = (1,),
    shared: int = 0,
) -> None:
    packed = kernels.packer(name).pack(args, no_table)
    Launch(kernels, name, grid, block, args, packed, 0, shared, "").start(Upload(0, 0, 0), stream)


def _bucket(blocks: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, blocks - 1).bit_length()


def _fixed(extent: int | Array) -> int:
    """An extent that is the same in all steps."""
    assert np.ptp(extent) == 0, "a graph's kernels differ in their number of blocks only"
    return int(np.max(extent))
