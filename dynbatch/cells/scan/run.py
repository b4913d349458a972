"""`ScanRun`: runs one batch of scans on the CPU, from packing in prefix layout to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.loop_arrays import LoopArrays, left_rooms, loop_rooms
from dynbatch.cells.scan.prefix import Extent, Shard, cut, of_pass, prefix_layout
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch, columns_of, memory_rows
from dynbatch.compiler.c.loop_text import ORDER, OUTPUTS, rows_of_stream
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.indexing import take
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import Task, Tasks
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

# Sentences per shard below which a second thread does not pay: each packs the weights anew.
LEAST_SENTENCES = 4

T = TypeVar("T")

Sorted = tuple[Sequence[T], Sequence[T | None], Sequence[T]]
"""What a scan has of its streams, of the parts of its first state, and of its memories."""


class ScanBatch:
    """One batch of scans on any device.

    Attributes:
        shards: the prefix layout; `sentences`, in its order, those of all.
        given:  which parts of the initial state are inputs.
        streams, inits, memories: packed inputs.
    """

    def __init__(self, batch: Batch, y: Ragged, xs: Sequence[Ragged]) -> None:
        node = batch.first
        self.batch = batch
        self.cell: CompiledCell = node.cell
        self.given: tuple[bool, ...] = node.given_states
        lengths = np.asarray(y.lengths, np.int64)
        count = self.threads(lengths.size)
        self.shards = prefix_layout(lengths, y.offsets, node.reverse, count)
        self.sentences = np.concatenate([shard.sentences for shard in self.shards])
        self.streams, self.inits, self.memories = sorted_inputs(batch, xs)

    def threads(self, sentences: int) -> int:
        """The number of shards."""
        return 1

    @staticmethod
    def saved(batch: Batch) -> Rooms:
        """The values that forward leaves; on a GPU also what it gathered: weights and memories."""
        first, *others = chunks_of(batch, leaves_all=True)
        count = sum([extent.running for extent in others])
        states = states_left(batch, count) if batch.recompute else None
        left = left_rooms(batch.first.cell, batch.device, first.rows, states)
        return left | (memory_rooms(batch, "M") if batch.device.is_cuda else {})

    @staticmethod
    def rooms(batch: Batch, backward: bool) -> Rooms:
        """The arrays of a pass: those of its loop, for its largest chunk, parts of the state and in
        backward of their gradients, and sorted memories.
        """
        cell, on_device, count = batch.first.cell, batch.device.is_cuda, len(batch.nodes)
        chunks = chunks_of(batch, on_device or (batch.keeps and not backward))
        rows = max([extent.rows for extent in chunks])
        rooms = loop_rooms(cell, batch, rows, count, backward)
        for k, state in enumerate(cell.program.states):
            carried = cell.on_device.loop.carried[k] if on_device else (f"C{k}",)
            for name in (f"I{k}", *(carried if backward else ())):
                rooms[name] = count, state.width
        if not on_device:
            return rooms | memory_rooms(batch, "M")
        if not backward:
            return rooms if batch.keeps else rooms | ScanBatch.saved(batch)
        streams = cell.program.streams
        rooms |= {f"dX{k}": (rows, streams[k].width) for k in cell.reached}
        return rooms | memory_rooms(batch, "dM")

    def take(self, backward: bool) -> Arrays:
        """The arrays of a pass."""
        return Scratch(self.batch.scratch).take_all(self.rooms(self.batch, backward))

    def read_again(self) -> None:
        """Take the inputs as they are packed for backward."""
        xs = [self.batch.input(k) for k in range(len(self.batch.inputs))]
        self.streams, self.inits, self.memories = sorted_inputs(self.batch, xs)


class ScanRun(ScanBatch):
    """One batch of scans on the CPU: forward.

    A pass is written down chunk by chunk, then done. With `batch.recompute` forward leaves the
    states between chunks; else, if backward follows, there is one chunk, of which it leaves what
    backward reads.

    Attributes:
        finds:   whether a part of the initial state is an input that steps change: else maps of it
                 are left out in the first step.
        native:  the loop in C; None where NumPy runs it. `loop` is what runs it.
        is_in_c: whether all of a pass is: operators with kernels of their own, maps of streams.
        generic: operators run by their own kernels, by name, of each shard.
    """

    def __init__(self, batch: Batch, y: Ragged, xs: Sequence[Ragged]) -> None:
        super().__init__(batch, y, xs)
        pairs = zip(self.given, self.cell.following, strict=True)
        self.finds = any([is_given and left is not None for is_given, left in pairs])
        self.native: NativeFunctions | None = self.cell.in_c.functions(batch.dtype)
        self.loop = self.native or self.cell.numpy
        self.recomputes = batch.recompute > 0
        runs_whole_steps = not self.cell.generic or self.cell.in_c.attends
        self.is_in_c = self.native is not None and not self.recomputes and runs_whole_steps
        self.generic: list[dict[str, GenericStep]] = [{} for _ in self.shards]

    def threads(self, sentences: int) -> int:
        return most_threads(sentences)

    def forward(self, y: Ragged) -> Tasks:
        """Write down chunk by chunk; outputs and last states go into sentence order."""
        rooms, tasks = self.take(backward=False), Tasks()
        chunks = self.chunks(self.batch.keeps)
        arrays = self.arrays(rooms, tasks, backward=False)
        states = self.in_order(self.inits, rooms, "I")
        self._make_generic(rooms)
        for chunk, following in zip(chunks, [*chunks[1:], []], strict=True):
            wide = arrays.of_all(sum([shard.rows for shard in chunk]))
            parts = [of_shard(states, shard) for shard in chunk]
            owns = self.of_shards(arrays, wide, chunk, parts, {OUTPUTS: y.values})
            is_first = chunk is chunks[0]
            tasks.then(*[self.forward_tasks(k, *each, is_first) for k, each in enumerate(owns)])
            leave = partial(self._leave_states, owns, states, following)
            if following:
                tasks.then([leave])
            else:
                tasks.at_last(leave)
        tasks.at_last(lambda: self.put(states, self.batch.ports))
        self.count_forward(len(chunks))
        return tasks

    def chunks(self, leaves_all: bool) -> list[list[Shard]]:
        """The shards, cut into the chunks of a pass: see `of_pass`."""
        return cut(self.shards, chunks_of(self.batch, leaves_all))

    def forward_tasks(
        self, number: int, shard: Shard, arrays: Arrays, is_first: bool
    ) -> list[Task]:
        """Tasks that run the steps of a shard of a chunk.

        Args:
            is_first: whether the pass begins with it.
        """
        tasks = self.begin_generic(GenericStep.begin, number, shard, is_first)
        if self.native is not None and self.is_in_c:
            return [*tasks, self.native.steps(0, arrays, shard.steps)]
        return [*tasks, partial(self._run_forward, shard, arrays)]

    def begin_generic(
        self, begin: Callable[..., None], number: int, shard: Shard, is_first: bool
    ) -> list[Task]:
        """Give the generic operators their next steps: at once, or when those before are done."""
        calls = [
            partial(begin, step, shard.first, shard.counts)
            for step in self.generic[number].values()
        ]
        if not is_first:
            return [*calls]
        for call in calls:
            call()
        return []

    def _run_forward(self, shard: Shard, arrays: Arrays) -> None:
        if self.native is not None and not self.recomputes:
            self.native.ahead(arrays)
        else:
            take_streams(arrays, range(len(self.streams)))
            self.cell.numpy.ahead(arrays)
        self.loop.bind(0, arrays)(shard.numbered)
        if self.native is None and OUTPUTS in arrays:
            exports = zip(self.cell.exports, self.cell.program.exports_at(), strict=True)
            for columns, (_, first) in exports:
                values = columns_of(arrays, columns)
                arrays[OUTPUTS][shard.order, first : first + columns.width] = values

    # Arrays and states ----------------------------------------------------------------------------

    def arrays(self, rooms: Arrays, tasks: Tasks, backward: bool) -> LoopArrays:
        running = [shard.sentences.size for shard in self.shards]
        keeps = (self.batch.keeps or backward) and not self.recomputes
        saved = self.batch.saved if keeps else None
        return LoopArrays(self.cell, rooms, running, tasks, saved, backward, self.recomputes)

    def of_shards(
        self, arrays: LoopArrays, wide: Arrays, chunk: list[Shard],
        states: Sequence[Sequence[Array]], outside: Arrays,
    ) -> list[tuple[Shard, Arrays]]:  # fmt: skip
        """Everything that generated code reads, for each shard of a chunk.

        Args:
            wide:    the rows of the chunk.
            states:  of each shard the parts of the state before it.
            outside: rows in sentence order, by the names that the loop in C has for them.
        """
        streams = {rows_of_stream(k): x.values for k, x in enumerate(self.streams)}
        shards = []
        for number, (shard, parts) in enumerate(zip(chunk, states, strict=True)):
            of_shard = arrays.of_shard(number, wide, shard.span, shard.place)
            of_shard |= {f"I{k}": rows for k, rows in enumerate(parts)} | self.generic[number]
            finds_state = self.finds or shard.first > 0
            shards.append(
                (shard, of_shard | streams | outside | {ORDER: shard.order, "given": finds_state})
            )
        return shards

    def in_order(self, parts: Sequence[Ragged | None], rooms: Arrays, letter: str) -> list[Array]:
        """Rows for the parts of a state, in the order of the shards; zeros for None."""
        states = [rooms[f"{letter}{k}"] for k in range(len(parts))]
        for part, rows in zip(parts, states, strict=True):
            if part is None:
                rows[...] = 0
            else:
                take_rows(part.values, self.sentences, rows)
        return states

    def put(self, states: Sequence[Array], parts: Sequence[Ragged | None]) -> None:
        """Bring states, or their gradients, to the order of sentences."""
        for part, rows in zip(parts, states, strict=True):
            if part is not None:
                part.values[self.sentences] = rows

    def _leave_states(
        self, owns: list[tuple[Shard, Arrays]], states: list[Array], following: list[Shard]
    ) -> None:
        """Bring the states up to date after a chunk, and keep them if backward begins from them."""
        for number, (shard, of_shard) in enumerate(owns):
            last = shard.last()
            for k, columns in enumerate(self.cell.following):
                if columns is None:
                    continue
                rows = states[k][shard.states][: last.size]
                take_rows(columns_of(of_shard, columns), last, rows)
                if following and self.batch.keeps:
                    next_rows = following[number].found
                    self.batch.saved[f"S{k}"][next_rows] = rows[: following[number].running]

    def wanted(self, of_streams: Sequence[Ragged | None]) -> dict[int, Array]:
        """The gradients of streams that the loop makes, by number; others become zeros."""
        wanted = {k: dx.values for k, dx in enumerate(of_streams) if dx is not None}
        for k in wanted.keys() - self.cell.reached.keys():
            wanted.pop(k)[...] = 0
        return wanted

    # Operators without generated code -------------------------------------------------------------

    def _make_generic(self, rooms: Arrays) -> None:
        keeps, dtype = self.batch.keeps and not self.recomputes, self.batch.dtype
        memories = self.sorted_memories(rooms) if self.cell.generic else []
        for shard, generic in zip(self.shards, self.generic, strict=True):
            read = memories_of(memories, shard)
            for number, op in self.cell.generic.items():
                step = GenericStep(op, read, shard.sentences.size, dtype, keeps)
                generic[f"G{number}"] = step

    def sorted_memories(self, rooms: Arrays) -> list[Ragged]:
        """The memories' rows in the order of the shards: where they lie, or as copies."""
        if not self.batch.keeps and (np.diff(self.sentences) == 1).all():
            return [*self.memories]
        into = [rooms[f"M{k}"] for k in range(len(self.memories))]
        return in_order_of(self.sentences, self.memories, into, take_rows)

    # Statistics -----------------------------------------------------------------------------------

    def count_forward(self, chunks: int) -> None:
        cell = self.cell
        around = chunks * (len(cell.stream_maps) + 2 * len(self.streams))
        self.count(cell.launches, len(cell.state_maps), around)

    def count_backward(self, chunks: int) -> None:
        cell = self.cell
        around = 1 + 2 * len(self.streams) + len(cell.stream_maps)
        self.count(cell.launches_backward, len(cell.state_maps), around)
        if self.recomputes:
            self.count_forward(chunks)
        self.batch.launches += len(cell.maps) * chunks

    def count(self, a_step: int, of_state: int, around: int) -> None:
        """Kernels of one pass: those of the loop, and those around it in each shard.

        Args:
            of_state: those of a step that are left out where the state is zeros.
        """
        steps = sum([len(shard.steps) for shard in self.shards])
        zeros = 0 if self.finds else sum([len(shard.steps) > 0 for shard in self.shards])
        self.batch.launches += steps * a_step - zeros * of_state + len(self.shards) * around


def most_threads(sentences: int) -> int:
    return min(parallel.available(), max(1, sentences // LEAST_SENTENCES))


def sorted_inputs(batch: Batch, xs: Sequence[T]) -> Sorted[T]:
    """Inputs, or their gradients, by what they are; None for parts of the state that are zeros."""
    node = batch.first
    streams = len(node.cell.program.streams)
    states = streams + sum(node.given_states)
    inits = iter(xs[streams:states])
    parts = [next(inits) if is_given else None for is_given in node.given_states]
    return xs[:streams], parts, xs[states:]


def states_left(batch: Batch, count: int) -> Rooms:
    """The parts of so many states that steps change."""
    changed = batch.first.cell.program.changed_states() if count else {}
    return {f"S{k}": (count, state.width) for k, state in changed.items()}


def memory_rooms(batch: Batch, letter: str) -> Rooms:
    """Rooms for the memories of all sentences that operators of the loop read."""
    first = batch.first
    memories = first.cell.program.memories
    if not memories:
        return {}
    pairs = zip(type(first).memory_rows(batch), memories, strict=True)
    return {f"{letter}{k}": (count, value.width) for k, (count, value) in enumerate(pairs)}


def chunks_of(batch: Batch, leaves_all: bool) -> tuple[Extent, ...]:
    """The chunks of a pass: see `of_pass`."""
    return of_pass(lengths_of(batch), batch.recompute, leaves_all)


def of_shard(states: Sequence[Array], shard: Shard) -> list[Array]:
    return [rows[shard.states] for rows in states]


def memories_of(memories: Sequence[Ragged | None], shard: Shard) -> list[Any]:
    """The memories of a shard's sentences."""
    first, end = shard.states.start, shard.states.stop
    return [
        None
        if x is None
        else Ragged(x.values[x.offsets[first] : x.offsets[end]], x.lengths[first:end])
        for x in memories
    ]


def in_order_of(
    sentences: Array, memories: Sequence[Ragged], rooms: Sequence[Array],
    pick: Callable[[Array, Array, Array], object],
) -> list[Ragged]:  # fmt: skip
    """Each memory's rows in another order of sentences, which `pick` brings to its room."""
    in_order = []
    for memory, room in zip(memories, rooms, strict=True):
        index, lengths = memory_rows(memory, sentences)
        rows = room[: index.size]
        pick(memory.values, index, rows)
        in_order.append(Ragged(rows, lengths.tolist()))
    return in_order


def take_rows(rows: Array, index: Array, out: Array) -> None:
    """out[n] = rows[index[n]]; a negative index reads anything."""
    take(rows, index, axis=0, out=out, mode="clip")


def take_streams(arrays: Arrays, numbers: Iterable[int]) -> None:
    for k in numbers:
        take_rows(arrays[rows_of_stream(k)], arrays[ORDER], arrays[f"X{k}"])


def lengths_of(batch: Batch) -> Array:
    return batch.array("length", np.int64)
