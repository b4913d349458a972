"""`Replays`: a step that comes again, as one CUDA graph. Off by default: not run on a card.

A step of generation has a hundred launches and more, each of which costs the host some
microseconds. A step whose launches are those of an earlier one, in the same order, is one graph:

    one copy of all tables, and of the arguments of all launches;  one launch of the graph

Nothing that changes from step to step is in a graph. Its kernels find their arguments in a table
(`source.of_steps`), which comes up with the others: addresses of pages and of the arena, numbers of
rows. Grids are powers of two, and the table says how many of the blocks have work. So a graph
serves every step with the same kernels, whatever its sentences, their lengths and their pages; and
of as many sentences as a power of two has room for.

A graph is captured when its kernels come for the second time, so that one which never comes again
costs nothing. What no graph can hold is started launch by launch, and `Replays.refused` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np

from dynbatch.backend import Array
from dynbatch.cupy_types import CudaGraph, CupyModule
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch, NotCapturable, bucket
from dynbatch.kernels.cuda.runtime.graphs import PLACE_BYTES, StepKernel, capture, latest
from dynbatch.kernels.cuda.runtime.packing import POINTER
from dynbatch.kernels.cuda.runtime.staging import Fill, Staging, Upload
from dynbatch.kernels.cuda.runtime.streams import Fork
from dynbatch.kernels.cuda.runtime.work import Work, refused

MOST_ROWS = 0
"""Rows of a product in a step that is replayed, 64 say, as our own kernel: CuPy lets none of cuBLAS
be captured. 0 for no replays."""

MOST_GRAPHS, MOST_KNOWN = 64, 256  # kept, and known by the kernels of one step

WORD = POINTER.itemsize


class ReplayTable:
    """The arguments of all launches of a step, in one table.

    Attributes:
        kernels: of the graph: a launch of each, which finds its arguments from word `first` on.
        words:   of all.
        place:   in the upload, once it is staged.
    """

    def __init__(self, launches: Sequence[KernelLaunch]) -> None:
        self.kernels: list[StepKernel] = []
        self.words = self.place = 0
        self._launches = launches
        for kernels, name, grid, block, shared, row, _, _ in launches:
            self.kernels.append(StepKernel(kernels, name, grid, block, shared, self.words))
            self.words += len(row) // WORD

    def put(self, stage: Callable[[int, Fill], int]) -> None:
        """Stage it; see `Staging.put_later`."""
        self.place = stage(self.words * WORD, self._fill)

    def _fill(self, upload: Upload, room: Array) -> None:
        room[:] = np.frombuffer(b"".join([launch.row for launch in self._launches]), np.uint8)
        tables: list[tuple[int, int]] = []
        for kernel, launch in zip(self.kernels, self._launches, strict=True):
            if launch.tables:
                upload.require(launch.upload)
                first = kernel.first + 1
                tables += [(first + word, offset) for word, offset in launch.tables]
        if tables:
            words, places = np.array(tables, np.int64).T
            room.view(POINTER)[words] = upload.base + places


class Replays:
    """The steps of one queue that come again.

    Args:
        staging: of the queue.

    Attributes:
        captured: graphs that were made.
        replayed: steps that were one launch of a graph.
        new:      steps whose kernels had not come before, started launch by launch.
        refused:  steps that no graph can hold, by the reason; started so, too.
        few_rows: the most rows of a product that is a kernel of our own now.
    """

    def __init__(self, cupy: CupyModule, staging: Staging) -> None:
        self._cupy = cupy
        self._staging = staging
        self._number = -1  # of the upload that belongs to a step which comes again
        self._place = 0  # in that, of the two words which say where the step's arguments are
        self._table: ReplayTable | None = None
        self._known: dict[object, None] = {}
        self._graphs: dict[object, CudaGraph] = {}
        self.captured = self.replayed = self.new = self.few_rows = 0
        self.refused: Counter[str] = Counter()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Take what is queued inside, and then until the flush, as a step that comes again."""
        if not MOST_ROWS:
            yield
            return
        self.few_rows, self._number = MOST_ROWS, self._staging.number
        self._place = self._staging.put_later(PLACE_BYTES, self._fill_place)
        try:
            yield
        finally:
            self.few_rows = 0
        if self._number != self._staging.number:
            self.refused["a part of it was started before the rest was queued"] += 1

    def __str__(self) -> str:
        lines = [
            f"{self.replayed} steps replayed, of {self.captured} graph{'s' * (self.captured != 1)}"
        ]
        if self.new:
            lines[0] += f"; {self.new} launched one by one, whose kernels were new"
        lines += [f"{n} launched one by one: {why}" for why, n in self.refused.items()]
        return "\n  ".join(lines)

    def _fill_place(self, upload: Upload, room: Array) -> None:
        if self._table is not None:
            room.view(POINTER)[0] = upload.base + self._table.place

    def table(self, waiting: Iterable[Work | Fork]) -> ReplayTable | None:
        """The table of what is to be replayed, staged; None if it is started launch by launch."""
        self._table = None
        if self._number == self._staging.number:
            self._table = self._known_step(waiting)
            if self._table is not None:
                self._table.put(self._staging.put_later)
        return self._table

    def _known_step(self, waiting: Iterable[Work | Fork]) -> ReplayTable | None:
        try:
            works = list(_in_one_row(waiting))
            launches = [launch for work in works for launch in work.launches_in_graph()]
        except NotCapturable as reason:
            self.refused[str(reason)] += 1
            return None
        if not launches:
            return None
        table = ReplayTable(launches)
        key = tuple(table.kernels)
        is_known = key in self._known
        latest(self._known, key, None, MOST_KNOWN)
        self.new += not is_known
        return table if is_known else None

    def start(self, table: ReplayTable, upload: Upload, label: str) -> None:
        """Replay a step, whose arguments this upload has, on the current stream.

        Raises:
            BackendError: the device refused it; names what was queued last.
        """
        address = upload.base + self._place
        key = (address, *table.kernels)
        try:
            graph = self._graphs.get(key) or self._captured(address, table)
            latest(self._graphs, key, graph, MOST_GRAPHS).launch()
        except Exception as error:
            raise refused(error, "a step as one CUDA graph", label) from error
        table.kernels[0].kernels.launches["graph"] += 1
        self.replayed += 1

    def _captured(self, place: int, table: ReplayTable) -> CudaGraph:
        launches = [kernel.at(place, 0, table.words) for kernel in table.kernels]
        graph = capture(self._cupy, launches)
        self.captured += 1
        return graph


def rows_to_fill(count: int) -> int:
    """The further rows with which a step of `count` rows is replayed; 0 if it is not."""
    return max(0, min(bucket(count), MOST_ROWS) - count)


def _in_one_row(waiting: Iterable[Work | Fork]) -> Iterator[Work]:
    """All work, branches one after the other."""
    for item in waiting:
        if isinstance(item, Fork):
            yield from chain.from_iterable(item.branches)
        else:
            yield item
