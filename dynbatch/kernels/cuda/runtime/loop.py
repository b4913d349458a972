"""`PreparedLoop`: kernels and products of many steps, which one item of the queue starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, cycle, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime import graphs
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch
from dynbatch.kernels.cuda.runtime.cublas import Cublas
from dynbatch.kernels.cuda.runtime.graphs import LoopGraphs, StepTable
from dynbatch.kernels.cuda.runtime.launch import MOST_ACROSS, ONES, THREADS, TILE, too_wide
from dynbatch.kernels.cuda.runtime.loop_items import Extent, Item, KernelItem, ProductItem, Start
from dynbatch.kernels.cuda.runtime.packing import (
    POINTER,
    Argument,
    PerStep,
)
from dynbatch.kernels.cuda.runtime.staging import Fill, Upload
from dynbatch.kernels.cuda.runtime.work import WorkQueue

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class LoopQueue(WorkQueue, Protocol):
    """The interface of a queue for prepared loops; implemented by `queue.Queue`."""

    def cublas(self, dtype: DTypeLike) -> Cublas: ...
    @property
    def graphs(self) -> LoopGraphs: ...
    def stage_later(self, size: int, fill: Fill) -> int: ...


class PreparedLoop:
    """Steps of a loop, each the same kernels and products in turn, with other numbers.

    All arguments of all steps are computed ahead, by NumPy, and the steps are started by one item
    of the queue, without a call of a Python function for each launch:

        loop = PreparedLoop(queue, dtype, steps)
        loop.product(False, True, n, 4 * h, h, states, h, weights, h, 0, gates, 4 * h)
        loop.kernel("gates", (-(-n * h // 128),), (128,), (*addresses, table, PerStep(numbers)))
        queue.add(loop)

    A number of a product, or an extent of a grid, is an int or an array of one for each step; an
    argument of a kernel that differs from step to step is a `PerStep`. A step in which an extent is
    0, or for which `where` says so, leaves the item out. Within a step the items run in the order
    in which they were added.

    The tables among the arguments belong to the next upload, so nothing may flush the queue
    between the adding of a kernel and that of the loop.

    Args:
        queue: to which the loop will be added.
        dtype: float32 or float64, of all its kernels and products.
        steps: their number.

    Attributes:
        launches: kernels and products that it starts.
    """

    __slots__ = ("_cublas", "_items", "_kernels", "_name", "_present", "_queue", "_steps", "_table",
                 "label", "launches", "steps")  # fmt: skip

    def __init__(self, queue: LoopQueue, dtype: DTypeLike, steps: int) -> None:
        self.steps = steps
        self.label = queue.label
        self.launches = 0
        self._queue = queue
        self._kernels = queue.kernels(dtype)
        self._cublas = queue.cublas(dtype)
        self._items: list[Item] = []
        self._present: list[Array] = []  # of each item, the steps in which it runs
        self._name = "a loop"
        self._steps: Iterator[tuple[Item, Start, Any]] = iter(())
        self._table: StepTable | None = None  # where graphs start it

    def __str__(self) -> str:
        return self._name

    def kernel(
        self,
        name: str,
        grid: tuple[Extent, ...],
        block: tuple[int, ...],
        args: Sequence[Argument | PerStep],
        shared: int = 0,
        where: bool | Array = True,
    ) -> None:
        """Add a kernel to every step; see `Queue.launch`.

        Raises:
            DtypeError, ShapeError, OverflowError: as `Kernels.launch`.
        """
        packer = self._kernels.packer(name)
        words, tables = packer.rows(args, self.steps, self._queue.stage)
        grid, block = (*grid, *ONES[len(grid)]), (*block, *ONES[len(block)])
        most = [int(e.max()) if isinstance(e, np.ndarray) else e for e in grid]
        if max(most[1:]) > MOST_ACROSS:
            raise too_wide(name, most)
        upload = self._queue.upload
        item = KernelItem(self._kernels, name, grid, block, shared, words, tables, upload, args)
        self._add(item, (*grid, *block), where)

    def product(
        self, transpose_a: bool, transpose_b: bool, m: Extent, n: Extent, k: Extent,
        a: Extent, lda: Extent, b: Extent, ldb: Extent, beta: int, c: Extent, ldc: Extent,
        where: bool | Array = True,
    ) -> None:  # fmt: skip
        """Add C = op(A) op(B) + beta C to every step; see `Cublas.gemm`.

        A step in which k is 0 is left out, whatever beta.
        """
        cublas = self._cublas
        args = cublas.arguments(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, beta, c, ldc)
        self._add(ProductItem(cublas.function, args, cublas.handles, -1), (m, n, k), where)

    def products(
        self, transpose_a: bool, transpose_b: bool, m: Extent, n: Extent, k: Extent,
        a: Array, lda: Extent, b: Array, ldb: Extent, beta: int, c: Array, ldc: Extent,
        where: bool | Array = True,
    ) -> None:  # fmt: skip
        """Add several products of one size to every step; see `Cublas.gemm_batched`.

        Args:
            a, b, c: the addresses of the factors' and the sums' matrices, (steps, count), or
                (count,) where they are those of every step.
        """
        cublas = self._cublas
        count = c.shape[-1]
        operands = [np.broadcast_to(each, (self.steps, count)) for each in (a, b, c)]
        if cublas.batched is None:
            for x, y, z in zip(*[each.T for each in operands], strict=True):
                self.product(transpose_a, transpose_b, m, n, k, x, lda, y, ldb, beta, z, ldc, where)
            return
        rows = np.arange(self.steps) * (count * POINTER.itemsize)
        x, y, z = [self._queue.stage(each, POINTER) + rows for each in operands]
        args = cublas.arguments(transpose_a, transpose_b, m, n, k, x, lda, y, ldb, beta, z, ldc)
        item = ProductItem(cublas.batched, (*args, count), cublas.handles, self._queue.upload)
        self._add(item, (m, n, k, count), where)

    def zero_rows(
        self, rows: Array, stride: Extent, width: int, count: Array, where: Array
    ) -> None:
        """Add zeros in the first `count` rows at addresses of each step."""
        size = count * width
        args = (PerStep(rows), width, stride, PerStep(size))
        self.kernel("zero_rows", (-(-size // THREADS),), (THREADS,), args, where=where)

    def add_bias(self, rows: Array, bias: int, width: int, count: Array, where: Array) -> None:
        """Add a bias to the first `count` rows, which lie side by side."""
        size = count * width
        args = (PerStep(rows), bias, width, PerStep(size))
        self.kernel("add_bias", (-(-size // TILE),), (THREADS,), args, where=where)

    def copy_rows(
        self, x: Array, x_stride: Extent, y: Array, y_stride: Extent, width: int, count: Array,
        where: Array,
    ) -> None:  # fmt: skip
        """Add a copy of the first `count` rows of x to those of y."""
        size = count * width
        args = (PerStep(x), x_stride, PerStep(y), y_stride, width, PerStep(size))
        self.kernel("copy_rows", (-(-size // TILE),), (THREADS,), args, where=where)

    def _need_kernels(self) -> None:
        for item in self._items:
            if isinstance(item, KernelItem):
                item.kernels.need(item.name)

    def _add(self, item: Item, extents: Iterable[Extent], where: bool | Array) -> None:
        present = np.full(self.steps, where)
        for extent in extents:
            if isinstance(extent, np.ndarray) or not extent:  # most are the same in all steps
                present &= np.not_equal(extent, 0)
        count = int(present.sum())
        if count:
            self._items.append(item)
            self._present.append(present)
            self.launches += count

    def step(self, number: int) -> LoopStep:
        """One of the steps as an item of its own: between them is what only a queue starts.

        All steps must be added, in this order, before the next flush.
        """
        if not number:
            self._need_kernels()
        return LoopStep(self, number, self.label)

    def stage(self) -> None:
        """Need its kernels, or stage what graphs read, if they start all steps: it is complete."""
        kernels = [item for item in self._items if isinstance(item, KernelItem)]
        if graphs.STEPS and self.steps >= graphs.STEPS and len(kernels) == len(self._items) > 0:
            self._table = StepTable(kernels, self._present, self._queue.stage_later)
        else:
            self._need_kernels()

    def start(self, upload: Upload, stream: int) -> None:
        """Start all steps."""
        if self._table is not None:
            self._name = "the graph of a loop"
            self._queue.graphs.start(self._table, upload, stream)
            return
        item: Item | None = None
        try:
            order = np.stack(self._present, axis=1).ravel().tolist() if self._items else ()
            for item, call, args in compress(self._launches(upload, stream), order):  # noqa: B007
                call(*args)
        except Exception:
            self._name = str(item)
            raise

    def launches_in_graph(self) -> Iterator[KernelLaunch]:
        for number in range(self.steps):
            yield from self.launches_of_step(number)

    def launches_of_step(self, number: int) -> Iterator[KernelLaunch]:
        """The launches of one step; see `Work.launches_in_graph`."""
        for item, present in zip(self._items, self._present, strict=True):
            if present[number]:
                yield item.at(number)

    def start_step(self, number: int, upload: Upload, stream: int) -> None:
        """Start one step; the numbers of all are brought together when the first one starts."""
        item: Item | None = None
        try:
            if not number:
                self._steps = self._launches(upload, stream)
            launches = zip(islice(self._steps, len(self._items)), self._present, strict=True)
            for (item, call, args), present in launches:  # noqa: B007  # named below
                if present[number]:
                    call(*args)
        except Exception:
            self._name = str(item)
            raise

    def _launches(self, upload: Upload, stream: int) -> Iterator[tuple[Item, Start, Any]]:
        """Items of all steps, in order, each with the function that starts it, and its arguments.

        A step's arguments are there also where it leaves the item out.
        """
        calls, columns = [], []
        for item, present in zip(self._items, self._present, strict=True):
            self._name = str(item)
            call, args = item.ready(int(present.sum()), upload, stream)
            calls.append(call)
            columns.append(zip(*[self._each(arg) for arg in args], strict=True))
        steps = chain.from_iterable(zip(*columns, strict=True))
        return zip(cycle(self._items), cycle(calls), steps, strict=False)

    def _each(self, value: Extent) -> Iterable[int]:
        return value.tolist() if isinstance(value, np.ndarray) else repeat(int(value), self.steps)


class LoopStep(NamedTuple):
    """One step of a prepared loop."""

    loop: PreparedLoop
    number: int
    label: str

    def __str__(self) -> str:
        return str(self.loop)

    def start(self, upload: Upload, stream: int) -> None:
        self.loop.start_step(self.number, upload, stream)

    def launches_in_graph(self) -> Iterator[KernelLaunch]:
        return self.loop.launches_of_step(self.number)
