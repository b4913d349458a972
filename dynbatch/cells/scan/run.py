"""`ScanRun`: runs one batch of scans on the CPU, from packing in prefix layout to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.loop_arrays import LoopArrays, loop_rooms
from dynbatch.cells.scan.prefix import Extent, Shard, cut, extents, of_pass, prefix_layout
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch, columns_of, memory_rows
from dynbatch.compiler.buffers import Storage
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

States = list[list[Array]]
"""Of each shard the parts of the state before its first step, or of their gradients."""


class ScanBatch:
    """One batch of scans on any device.

    Attributes:
        shards: the prefix layout.
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
        self.streams, self.inits, self.memories = sorted_inputs(batch, xs)

    def threads(self, sentences: int) -> int:
        """The number of shards."""
        return 1

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
        states = self.initial_states(rooms)
        self._make_generic(rooms)
        for chunk, following in zip(chunks, [*chunks[1:], []], strict=True):
            wide = arrays.of_all(sum([shard.rows for shard in chunk]))
            owns = self.of_shards(arrays, wide, chunk, states, {OUTPUTS: y.values})
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
        return cut(self.shards, of_pass(lengths_of(self.batch), self.batch.recompute, leaves_all))

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
            first = 0
            for columns in self.cell.exports:
                end = first + columns.width
                arrays[OUTPUTS][shard.order, first:end] = columns_of(arrays, columns)
                first = end

    # Arrays and states ----------------------------------------------------------------------------

    def take(self, backward: bool) -> Arrays:
        """The arrays of a pass."""
        return Scratch(self.batch.scratch).take_all(self.rooms(self.batch, backward))

    def arrays(self, rooms: Arrays, tasks: Tasks, backward: bool) -> LoopArrays:
        running = [shard.sentences.size for shard in self.shards]
        keeps = (self.batch.keeps or backward) and not self.recomputes
        saved = self.batch.saved if keeps else None
        return LoopArrays(self.cell, rooms, running, tasks, saved, backward, self.recomputes)

    def of_shards(
        self, arrays: LoopArrays, wide: Arrays, chunk: list[Shard], states: States,
        outside: Arrays,
    ) -> list[tuple[Shard, Arrays]]:  # fmt: skip
        """Everything that generated code reads, for each shard of a chunk.

        Args:
            wide:    the rows of the chunk.
            states:  before it.
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

    def initial_states(self, rooms: Arrays) -> States:
        return self.by_shard(self.inits, rooms, "I")

    def by_shard(self, parts: Sequence[Ragged | None], rooms: Arrays, letter: str) -> States:
        """Rows for the parts of a state, in each shard's order of sentences; zeros for None."""
        states: States = []
        first = 0
        for shard in self.shards:
            rows = slice(first, first + shard.sentences.size)
            first = rows.stop
            states.append(
                [
                    self._sorted(part, shard, rooms[f"{letter}{k}"][rows])
                    for k, part in enumerate(parts)
                ]
            )
        return states

    def _sorted(self, part: Ragged | None, shard: Shard, rows: Array) -> Array:
        if part is None:
            rows[...] = 0
        else:
            take_rows(part.values, shard.sentences, rows)
        return rows

    def put(self, states: States, parts: Sequence[Ragged | None]) -> None:
        """Bring states, or their gradients, to the order of sentences."""
        for shard, of_shard in zip(self.shards, states, strict=True):
            for part, rows in zip(parts, of_shard, strict=True):
                if part is not None:
                    part.values[shard.sentences] = rows

    def _leave_states(
        self, owns: list[tuple[Shard, Arrays]], states: States, following: list[Shard]
    ) -> None:
        """Bring the states up to date after a chunk, and keep them if backward begins from them."""
        for number, (shard, of_shard) in enumerate(owns):
            last = shard.last()
            for k, columns in enumerate(self.cell.following):
                if columns is None:
                    continue
                rows = states[number][k]
                take_rows(columns_of(of_shard, columns), last, rows[: last.size])
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
        if not self.cell.generic:
            return
        for shard, generic, memories in zip(
            self.shards, self.generic, self.sorted_memories(rooms), strict=True
        ):
            for number, op in self.cell.generic.items():
                step = GenericStep(op, memories, shard.sentences.size, dtype, keeps)
                generic[f"G{number}"] = step

    def sorted_memories(self, rooms: Arrays) -> Iterator[list[Ragged]]:
        """The memories' rows in each shard's order of sentences: where they lie, or as copies."""
        begins = [0] * len(self.memories)
        for shard in self.shards:
            memories, sentences = [], shard.sentences
            lies_so = bool(sentences.size and (np.diff(sentences) == 1).all())
            for k, memory in enumerate(self.memories):
                if lies_so and not self.batch.keeps:
                    first, last = int(sentences[0]), int(sentences[-1]) + 1
                    start, end = memory.offsets[first], memory.offsets[last]
                    memories.append(Ragged(memory.values[start:end], memory.lengths[first:last]))
                    continue
                index, lengths = memory_rows(memory, sentences)
                rows = rooms[f"M{k}"][begins[k] : begins[k] + index.size]
                begins[k] += index.size
                take_rows(memory.values, index, rows)
                memories.append(Ragged(rows, lengths.tolist()))
            yield memories

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

    # Sizes ----------------------------------------------------------------------------------------

    @staticmethod
    def saved(batch: Batch) -> Rooms:
        """The values that forward leaves."""
        return left_values(batch, batch.first.cell.storage)

    @staticmethod
    def rooms(batch: Batch, backward: bool) -> Rooms:
        """The arrays of a pass: those of its loop, parts of the state and in backward of their
        gradients, and sorted memories.
        """
        cell: CompiledCell = batch.first.cell
        chunks = of_pass(lengths_of(batch), batch.recompute, batch.keeps and not backward)
        rows, running, again = max([e.rows for e in chunks]), len(batch.nodes), batch.recompute > 0
        keeps = (batch.keeps or backward) and not again
        rooms = loop_rooms(cell, cell, rows, running, batch.dtype, keeps, backward, again)
        for letter in "IC" if backward else "I":
            for k, state in enumerate(cell.program.states):
                rooms[f"{letter}{k}"] = running, state.width
        return rooms | memory_rooms(batch, "M")


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


def left_values(batch: Batch, storage: Storage) -> Rooms:
    """The values that forward leaves: all packed ones, or only the states between chunks."""
    chunks = chunks_of(batch)
    if not batch.recompute:
        return {b.name: (chunks[0].rows, b.width) for b in storage.packed}
    return states_left(batch, sum([extent.running for extent in chunks[1:]]))


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


def chunks_of(batch: Batch) -> tuple[Extent, ...]:
    """The chunks that backward makes again one after the other; else one."""
    return extents(lengths_of(batch), batch.recompute)


def take_rows(rows: Array, index: Array, out: Array) -> None:
    """out[n] = rows[index[n]]; a negative index reads anything."""
    take(rows, index, axis=0, out=out, mode="clip")


def take_streams(arrays: Arrays, numbers: Iterable[int]) -> None:
    for k in numbers:
        take_rows(arrays[rows_of_stream(k)], arrays[ORDER], arrays[f"X{k}"])


def lengths_of(batch: Batch) -> Array:
    return batch.array("length", np.int64)
