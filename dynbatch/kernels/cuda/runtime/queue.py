"""`Queue`: holds the launches of a run, in order, until one copy has uploaded all tables.

Kernels are called as on the CPU, with offsets and ids as NumPy arrays. On a GPU those are tables.
So the CUDA version of a kernel does not launch directly: it adds launch and tables to the queue.
`flush` copies all tables of the run to the device at once, from pinned memory, and then launches
everything. Nothing here waits for the device.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dynbatch import backend
from dynbatch.backend import Array, DType
from dynbatch.cupy_types import CupyModule
from dynbatch.errors import DynbatchError
from dynbatch.kernels.cuda.runtime.ahead import compiled_ahead
from dynbatch.kernels.cuda.runtime.cublas import Cublas, Handles
from dynbatch.kernels.cuda.runtime.graphs import LoopGraphs
from dynbatch.kernels.cuda.runtime.launch import Dimensions, Kernels, Launch
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.packing import Arguments, Tables
from dynbatch.kernels.cuda.runtime.replays import Replays, rows_to_fill
from dynbatch.kernels.cuda.runtime.source import name_of
from dynbatch.kernels.cuda.runtime.staging import Staging, Upload
from dynbatch.kernels.cuda.runtime.streams import Fork, SideStreams, joined
from dynbatch.kernels.cuda.runtime.work import HostCall, Work, refused
from dynbatch.kernels.runtime.precision import of_products

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


NEEDED = attrgetter("needed")


class Queue:
    """The work for one GPU, CuPy's current one when it is made, that has not been started yet.

    Attributes:
        label:    what is running now; errors name it.
        uploads:  copies of tables so far.
        uploaded_bytes: their bytes.
        early:    launches and uploads of the run that were started `at_once`.
        graphs:   of the steps of loops, if `graphs.STEPS` says so.
        replays:  of whole steps that come again, if `replays.MOST_ROWS` says so.
        last_chain: the functions of elements that were queued last, for what may join them.
    """

    def __init__(self, cupy: CupyModule) -> None:
        self.cupy = cupy
        self._device = backend.Device(cupy, True, cupy.cuda.runtime.getDevice())
        self.label = ""
        self._at_once = False
        self.uploads = 0
        self.uploaded_bytes = 0
        self.early = Counter[str]()
        self._kernels: dict[DType, Kernels] = {
            np.dtype(name): Kernels(name, cupy) for name in ("float32", "float64")
        }
        self._waiting: list[Work | Fork] = []
        self._earlier: list[list[Work | Fork]] = []  # within `side_by_side`
        self._streams = SideStreams(cupy)
        self._cublas: dict[tuple[DType, str], Cublas] = {}
        self._handles = Handles(cupy)
        self._staging = Staging(cupy)
        self.graphs = LoopGraphs(cupy)
        self.replays = Replays(cupy, self._staging)
        self.repeating = self.replays.repeating
        self.rows_to_fill = rows_to_fill
        self.stage = self._staging.put
        self.stage_later = self._staging.put_later
        self._kept: list[Array] = []
        self.last_chain: object = None
        self._postponed: dict[Callable[[list[Any]], None], list[Any]] = {}

    @property
    def launches(self) -> int:
        """Kernels launched and products of cuBLAS started so far."""
        counts = [sum(kernels.launches.values()) for kernels in self._kernels.values()]
        return self._handles.products + sum(counts)

    def counts(self) -> Counter[str]:
        """Launches and uploads so far."""
        return Counter(launches=self.launches, uploads=self.uploads)

    def kernels(self, dtype: DTypeLike) -> Kernels:
        """The kernels for one element type."""
        known = self._kernels.get(dtype)  # type: ignore[arg-type]  # a name is not found
        return self._kernels[np.dtype(dtype)] if known is None else known

    def cublas(self, dtype: DTypeLike) -> Cublas:
        """The matrix products for one element type, in the precision that the run wants."""
        key = np.dtype(dtype), of_products()
        known = self._cublas.get(key)
        if known is None:
            known = self._cublas[key] = Cublas(self, self._handles, *key)
        return known

    @property
    def workspace_bytes(self) -> int:
        """Device memory that cuBLAS keeps for this queue's products."""
        return self._handles.workspace_bytes

    @property
    def most_shared_bytes(self) -> int:
        """Shared memory that a block can have on the current device."""
        return int(self.cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    def launch(
        self,
        dtype: DTypeLike,
        name: str,
        grid: Dimensions,
        block: Dimensions,
        args: Arguments,
        shared: int = 0,
    ) -> Work | None:
        """Queue a kernel; see `Kernels.launch`.

        Args:
            dtype: of the values: which REAL.
            args:  NumPy arrays among them are tables, staged in the type that the kernel's
                parameter points to, as they are when the first launch of a flush is given them: an
                array that is written again before the flush is no other table.
        """
        if 0 in grid or 0 in block:
            return None
        kernels = self._kernels.get(dtype) or self.kernels(dtype)  # type: ignore[arg-type]
        packed, number = self.packed(kernels, name, args), self._staging.number
        work = Launch(kernels, name, grid, block, args, packed, number, shared, self.label)
        if name not in kernels.known:
            kernels.needed.append(name)
        self._waiting.append(work)
        if self._at_once:
            self.flush()
        return work

    def is_last(self, work: Work | None) -> bool:
        """Whether this was queued last, and waits."""
        return bool(self._waiting) and self._waiting[-1] is work

    def take_back(self) -> None:
        """Forget the launch that was queued last; something else does it too."""
        cast(Launch, self._waiting.pop()).forget()

    @property
    def upload(self) -> int:
        """The number of the next upload."""
        return self._staging.number

    @property
    def few_rows(self) -> int:
        """The most rows of a product that is a kernel of our own now."""
        return self.replays.few_rows

    def packed(self, kernels: Kernels, name: str, args: Arguments) -> tuple[bytes, Tables]:
        """The arguments of a launch; host arrays become tables of the next upload."""
        try:
            return (kernels.packers.get(name) or kernels.packer(name)).pack(args, self.stage)
        except Exception as error:
            error.add_note(f"kernel {name_of(name)}, for {self.label or 'no node'}")
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Queue other device work, a copy for instance."""
        self.add(HostCall(function, self.label))

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks that queue work, which may run side by side on the device."""
        self._earlier, self._waiting = [self._waiting], []
        try:
            for task in tasks:
                task()
                self._earlier.append(self._waiting)
                self._waiting = []
        finally:
            before, *branches = self._earlier
            joint = joined(cast("list[list[Work]]", branches))
            self._waiting = [*before, *joint, *self._waiting]
            self._earlier = []

    def add(self, work: Work) -> None:
        """Queue work."""
        if isinstance(work, PreparedLoop):
            work.stage()
        self._waiting.append(work)
        if self._at_once:
            self.flush()

    def add_all(self, works: Iterable[Work]) -> None:
        """Queue work that was queued before."""
        self._waiting += works
        if self._at_once:
            self.flush()

    def queued_by(
        self, actions: Iterable[Callable[[], object]]
    ) -> tuple[Sequence[Work | Fork], Sequence[Array]] | None:
        """The work that actions queue, and the arrays kept for it; None where some was started."""
        number, first, kept = self.upload, len(self._waiting), len(self._kept)
        self.last_chain = None
        for action in actions:
            action()
        self.last_chain = None  # what follows joins nothing of this
        if self.upload != number:
            return None
        return self._waiting[first:], self._kept[kept:]

    def postpone(self, work: Callable[[list[Any]], None], item: object) -> None:
        """Have `work` queue launches for all such items together, when the queue is settled."""
        self._postponed.setdefault(work, []).append(item)
        if self._at_once:
            self.flush()

    def settle(self) -> None:
        """Queue what was postponed."""
        while self._postponed:
            postponed, self._postponed = self._postponed, {}
            for work, items in postponed.items():
                work(items)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Start all queued work, and inside the block start new work immediately.

        Use it around code that computes with CuPy directly, which bypasses the queue.
        """
        before = self.counts()
        self.flush()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False
            self.early += self.counts() - before

    def hook(self, names_kernels: bool) -> AbstractContextManager[None]:
        """A context for a hook of a node type: `at_once`, unless it only queues kernels."""
        return nullcontext() if names_kernels else self.at_once()

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """A device array for this run only: its memory is free again after `flush`."""
        array = self.cupy.empty(shape, dtype)
        self._kept.append(array)
        return array

    def keep(self, *arrays: Array) -> None:
        """Keep arrays alive until `flush`: queued work only holds their addresses."""
        self._kept += arrays

    def flush(self) -> None:
        """Settle the queue, upload the tables, then start all queued work in order.

        Within `side_by_side` this is the work queued before, then the tasks so far, one by one. The
        queue is empty afterwards, even after an error.

        Raises:
            BackendError: the device refused something; says for which node and batch.
            OutOfMemory:  it had no memory for it.
        """
        self._device.use()
        try:
            self.settle()
        except BaseException:
            self.discard()
            raise
        waiting = list(chain(*self._earlier, self._waiting))
        for items in (*self._earlier, self._waiting):
            items.clear()
        try:
            table = self.replays.table(waiting)
            upload = self._bring_up()
            if upload.copied:
                self.uploads += 1
                self.uploaded_bytes += upload.copied
            stream = self.cupy.cuda.get_current_stream().ptr
            start = partial(self._start, upload, stream, waiting)
            if table is not None:
                start = partial(self.replays.start, table, upload, self.label)
            if any(map(NEEDED, self._kernels.values())):
                with compiled_ahead(self._kernels.values()):
                    start()
            else:
                start()
        finally:
            self._staging.done()
            self._kept.clear()
            self.last_chain = None

    def _bring_up(self) -> Upload:
        try:
            return self._staging.upload()
        except Exception as error:
            raise refused(error, "the upload of the run's tables", self.label) from error

    def waiting(self) -> list[str]:
        """The names of the queued work in order, as errors show them."""
        return [str(work) for work in self._waiting if not isinstance(work, Fork)]

    def discard(self) -> None:
        """Drop all queued work: its run failed."""
        for items in (*self._earlier, self._waiting):
            items.clear()
        self._postponed.clear()
        self.early.clear()
        self.last_chain = None
        for kernels in self._kernels.values():
            kernels.needed.clear()
        self._staging.discard()
        self._kept.clear()

    def _start(self, upload: Upload, stream: int, waiting: Iterable[Work | Fork]) -> None:
        """Start items in order; an error names the one that was refused."""
        try:
            for item in waiting:
                if isinstance(item, Fork):
                    self._streams.run(item, partial(self._start, upload))
                else:
                    item.start(upload, stream)
        except DynbatchError as error:
            if not isinstance(item, Fork):  # whose own items have been named
                error.add_note(f"{item}, launched for {item.label or 'no node'}")
            raise
        except Exception as error:
            if isinstance(item, Fork):
                raise
            raise refused(error, str(item), item.label) from error


_local = threading.local()


def queue() -> Queue:
    """The queue of this thread and CuPy's current device, which takes every launch."""
    cupy = backend.cupy()
    queues: dict[tuple[int, int], Queue] = _local.__dict__.setdefault("queues", {})
    key = (id(cupy), cupy.cuda.runtime.getDevice())
    if key not in queues:
        queues[key] = Queue(cupy)
    return queues[key]


@contextmanager
def queue_is(queue: Queue) -> Iterator[None]:
    """Have `queue` take this thread's launches for its module and device inside the block."""
    key = (id(queue.cupy), queue.cupy.cuda.runtime.getDevice())
    queues = _local.__dict__.setdefault("queues", {})
    queues[key] = queue
    try:
        yield
    finally:
        del queues[key]


def launch(
    like: Array,
    name: str,
    grid: Dimensions,
    block: Dimensions,
    args: Arguments,
    shared: int = 0,
) -> None:
    """Queue a kernel for values of `like`'s dtype; see `Queue.launch`."""
    queue().launch(like.dtype, name, grid, block, args, shared)
