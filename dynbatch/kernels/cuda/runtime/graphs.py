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

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.cupy_types import CudaGraph, CupyModule, MemoryPointer
from dynbatch.kernels.cuda.runtime.ahead import compiled_ahead
from dynbatch.kernels.cuda.runtime.captured import bucket
from dynbatch.kernels.cuda.runtime.launch import Dimensions, Kernels, Launch, no_table
from dynbatch.kernels.cuda.runtime.packing import HEADER_WORDS, POINTER
from dynbatch.kernels.cuda.runtime.staging import Fill, Upload

Key = TypeVar("Key")
Value = TypeVar("Value")

STEPS = 0
"""Steps in a graph, 8 say; 0 for no graphs."""

PLACE_BYTES = 16  # of the table's address and the step, in device memory
# Graphs that are kept, which CUDA frees when they have run; and streams, which nobody sees end.
MOST_GRAPHS, MOST_PLACES = 256, 16


class GraphLaunch(NamedTuple):
    """A launch in a graph."""

    kernels: Kernels
    name: str
    args: tuple[int, ...]
    grid: Dimensions = (1,)
    block: Dimensions = (1,)
    shared: int = 0


class StepKernel(NamedTuple):
    """A kernel of a step in a graph.

    first: its first word in a row of the table.
    """

    kernels: Kernels
    name: str
    grid: Dimensions
    block: Dimensions
    shared: int
    first: int

    def at(self, place: int, step: int, words: int) -> GraphLaunch:
        """The launch in a step; see `source.of_steps`."""
        self.kernels.know_of_steps(self.name)
        args = (place, step, self.first, words)
        name = f"{self.name}_of_step"
        return GraphLaunch(self.kernels, name, args, self.grid, self.block, self.shared)


class GraphItem(Protocol):
    """The interface of a loop's kernel; implemented by `loop_items.KernelItem`."""

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
    def place_tables(self, upload: Upload) -> None: ...


class StepTable:
    """The arguments of a loop's kernels in all steps, staged with the tables of the flush.

    A row for each step, and rows without blocks where the last graph has more steps; see
    `source.of_steps`.

    Args:
        items:   the loop's kernels.
        present: of each, the steps in which it runs.
        stage:   keeps room for so many bytes, which a function fills; see `Staging.put_later`.

    Attributes:
        kernels: whose kernels they are.
        words:   of a row.
        steps:   of a graph.
        graphs:  the kernels of each graph, in order.
        place:   in the upload.
    """

    def __init__(
        self,
        items: Sequence[GraphItem],
        present: Sequence[Array],
        stage: Callable[[int, Fill], int],
    ) -> None:
        self._items = items
        self.kernels = items[0].kernels
        self.steps = STEPS
        widths = [1 + item.words.shape[1] - HEADER_WORDS for item in items]
        *self._firsts, self.words = np.cumsum([0, *widths]).tolist()
        graphs = -(-present[0].size // STEPS)
        self._blocks = np.zeros((graphs * STEPS, len(items)), POINTER)
        for column, item, runs in zip(self._blocks.T, items, present, strict=True):
            column[: runs.size] = np.where(runs, item.grid[0], 0)
        most = self._blocks.reshape(graphs, STEPS, -1).max(axis=1).tolist()
        self.graphs = [tuple(map(_step_kernel, items, each, self._firsts)) for each in most]
        self.place = stage(len(self._blocks) * self.words * POINTER.itemsize, self._fill)

    def _fill(self, upload: Upload, room: Array) -> None:
        table = room.view(POINTER).reshape(len(self._blocks), self.words)
        table[:, self._firsts] = self._blocks
        for item, first in zip(self._items, self._firsts, strict=True):
            item.place_tables(upload)
            arguments = item.words[:, HEADER_WORDS:]
            steps, count = arguments.shape
            table[:steps, first + 1 : first + 1 + count] = arguments


def _step_kernel(item: GraphItem, blocks: int, first: int) -> StepKernel:
    grid = (bucket(blocks), *map(_fixed, item.grid[1:]))
    block = tuple(map(_fixed, item.block))
    return StepKernel(item.kernels, item.name, grid, block, item.shared, first)


class LoopGraphs:
    """The graphs of one queue: of each stream, kernels and grids, the `MOST_GRAPHS` used last.

    Attributes:
        captured: graphs that were made.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self._cupy = cupy
        self._places: dict[int, MemoryPointer] = {}  # of the loop that runs on a stream
        self._graphs: dict[tuple[object, ...], CudaGraph] = {}
        self.captured = 0

    def start(self, table: StepTable, upload: Upload, stream: int) -> None:
        """Start all steps of a loop, on the current stream.

        Args:
            table:  its arguments, which this upload has.
            stream: the address of the stream.
        """
        kernels, counter = table.kernels, self._place(stream)
        _launch(kernels, "begin_steps", (counter, upload.base + table.place), stream)
        for step_kernels in table.graphs:
            self._graph(kernels, counter, step_kernels, table.words, table.steps).launch()
            kernels.launches["graph"] += 1

    def _place(self, stream: int) -> int:
        """The address of a stream's place, which CuPy's pool lends for work on that stream."""
        counter = self._places.get(stream) or self._cupy.cuda.alloc(PLACE_BYTES)
        return latest(self._places, stream, counter, MOST_PLACES).ptr

    def _graph(
        self,
        kernels: Kernels,
        place: int,
        step_kernels: tuple[StepKernel, ...],
        words: int,
        steps: int,
    ) -> CudaGraph:
        """The graph of so many steps with these kernels, captured when it is first wanted."""
        key = (kernels, place, step_kernels, words, steps)
        graph = self._graphs.get(key) or self._captured(*key)
        return latest(self._graphs, key, graph, MOST_GRAPHS)

    def _captured(
        self,
        kernels: Kernels,
        place: int,
        step_kernels: tuple[StepKernel, ...],
        words: int,
        steps: int,
    ) -> CudaGraph:
        each = [kernel.at(place, step, words) for step in range(steps) for kernel in step_kernels]
        advance = GraphLaunch(kernels, "advance_steps", (place, steps))
        graph = capture(self._cupy, [*each, advance])
        self.captured += 1
        return graph


def capture(cupy: CupyModule, launches: Sequence[GraphLaunch]) -> CudaGraph:
    """A graph of launches, one after the other, which are not counted."""
    counted = {launch.kernels: launch.kernels.launches.copy() for launch in launches}
    for launch in launches:
        launch.kernels.need(launch.name)
    with compiled_ahead(counted):
        for launch in launches:  # compiled and loaded before anything is captured
            launch.kernels.loaded(launch.name).allow(launch.shared)
    capturing = cupy.cuda.Stream(non_blocking=True)
    try:
        with capturing:
            capturing.begin_capture()
            try:
                for kernels, name, args, grid, block, shared in launches:
                    _launch(kernels, name, args, capturing.ptr, grid, block, shared)
            finally:
                graph = capturing.end_capture()
    finally:
        for kernels, before in counted.items():
            kernels.launches.clear()
            kernels.launches.update(before)
    return graph


def latest(known: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """The value, entered as the one used last; the one used longest ago goes."""
    known.pop(key, None)
    if len(known) == most:
        del known[next(iter(known))]
    known[key] = value
    return value


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


def _fixed(extent: int | Array) -> int:
    assert np.ptp(extent) == 0, "a graph's kernels differ in their number of blocks only"
    return int(np.max(extent))
