"""`ScanRun`: runs one batch of scans, from packing in prefix layout to its outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np

from dynbatch.cells.generic import GenericStep
from dynbatch.cells.scan.arrays import of_shards, scan_arrays
from dynbatch.cells.scan.prefix import Chunk, PrefixLayout, Shard, cut, of_pass
from dynbatch.compiler.arrays import Arrays, Scratch, columns_of, memory_rows
from dynbatch.compiler.c.loop_text import ORDER, OUTPUTS, rows_of_stream
from dynbatch.compiler.c.native import NativeFunctions
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.kernels.c.runtime.tasks import NativeTask, NativeTasks
from dynbatch.kernels.runtime import parallel
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged

# Sentences per shard below which a second thread does not pay: each packs the weights anew.
LEAST_SENTENCES = 4


class ScanRun:
    """One batch of scans: its prefix layout in chunks, and forward.

    With `batch.recompute` forward leaves the states between chunks; else, if backward follows,
    there is one chunk, of which it leaves what backward reads.

    Attributes:
        streams, inits, memories: packed inputs.
        given:   which parts of the initial state are inputs.
        native:  the loop in C; None where NumPy runs it. `loop` is what runs it.
        is_in_c: whether all of a pass is, so that it can be written down and done at once.
        generic: operators run by their own kernels, by number, of each shard.
    """

    def __init__(self, batch: Batch, y: Ragged, xs: Sequence[Ragged]) -> None:
        node = batch.first
        self.batch = batch
        self.cell: CompiledCell = node.cell
        self.given: tuple[bool, ...] = node.given_states
        self.native: NativeFunctions | None = self.cell.in_c.functions(batch.dtype)
        self.loop = self.native or self.cell.numpy
        self.recomputes = batch.recompute > 0
        runs_whole_steps = not self.cell.generic or self.cell.in_c.attends
        self.is_in_c = self.native is not None and not self.recomputes and runs_whole_steps
        lengths = np.asarray(y.lengths, np.int64)
        shards = min(parallel.available(), max(1, lengths.size // LEAST_SENTENCES))
        self.layout = PrefixLayout(lengths, y.offsets, node.reverse, shards)
        self.chunks = cut(self.layout, of_pass(lengths, batch.recompute, batch.keeps))
        self.generic: list[dict[int, GenericStep]] = []
        self.read(xs)

    def read(self, xs: Sequence[Ragged]) -> None:
        """Sort the inputs, which are packed again for backward."""
        streams = len(self.cell.program.streams)
        states = streams + sum(self.given)
        self.streams, self.inits, self.memories = xs[:streams], xs[streams:states], xs[states:]

    def forward(self, y: Ragged) -> None:
        """Run chunk by chunk; outputs and last states go into sentence order."""
        batch, cell = self.batch, self.cell
        scratch = Scratch(batch.scratch)
        tasks = self.tasks()
        arrays = scan_arrays(cell, self.chunks, scratch, self.native, tasks)
        arrays.add_forward(not self.recomputes)
        arrays.add_values(batch.saved if batch.keeps and not self.recomputes else None)
        initial = self.initial_states(scratch)
        self._between = self._states_between(scratch)
        if cell.generic:
            self._make_generic(scratch)
        arrays.add_temporary(cell.storage.temporary)
        for number, chunk in enumerate(self.chunks):
            wide = arrays.wide(chunk.order.size)
            shards = of_shards(arrays, chunk, wide)
            wide |= arrays.kept  # then there is one chunk
            for k, (shard, of_shard) in enumerate(shards):
                bind_states(of_shard, self.given_to(shard), self.before(chunk, k, initial))
            if tasks is not None:
                tasks.then(*[[self._task(chunk, k, *each, y)] for k, each in enumerate(shards)])
                tasks.run()
            else:
                parallel.run(
                    [partial(self.run_forward, chunk, k, *each, y) for k, each in enumerate(shards)]
                )
            for port, columns in zip(self.batch.ports, self.cell.following, strict=True):
                port.values[chunk.ended] = columns_of(wide, columns)[chunk.last]
            if number + 1 < len(self.chunks):
                self._leave_states(chunk, self.chunks[number + 1], wide)
        self._states_of_empty_sentences()
        self.count_forward()

    def tasks(self) -> NativeTasks | None:
        """Where a pass is written down, if all of it is in C."""
        return NativeTasks() if self.is_in_c else None

    def _task(
        self, chunk: Chunk, number: int, shard: Shard, arrays: Arrays, y: Ragged
    ) -> NativeTask:
        """Forward of one shard in one chunk, rows brought in and out of its order."""
        assert self.native is not None
        for step in self.generic_steps(number, arrays):
            step.begin(shard.first, shard.counts)
        self.bind_outside(chunk, shard, arrays)
        arrays[OUTPUTS] = y.values
        return self.native.steps(0, arrays, shard.steps)

    def generic_steps(self, number: int, arrays: Arrays) -> Collection[GenericStep]:
        """The operators of a shard that have their own kernels, which generated code is given."""
        generic = self.generic[number] if self.generic else {}
        arrays.update({f"G{k}": step for k, step in generic.items()})
        return generic.values()

    def run_forward(
        self, chunk: Chunk, number: int, shard: Shard, arrays: Arrays, y: Ragged | None
    ) -> None:
        """Forward of one shard in one chunk.

        Args:
            y: where outputs go in sentence order; None leaves them in the shard's.
        """
        for step in self.generic_steps(number, arrays):
            step.begin(shard.first, shard.counts)
        self.gather_streams(chunk, shard, arrays)
        if self.native is not None and not self.recomputes:
            self.native.bind_forward(arrays)(shard.numbered, True)
        else:
            self.cell.numpy.ahead(arrays)
            self.loop.bind_forward(arrays)(shard.numbered)
        if y is None:
            return
        first, order = 0, chunk.order[shard.span]
        for columns in self.cell.exports:
            end = first + columns.width
            y.values[order, first:end] = columns_of(arrays, columns)
            first = end

    def bind_outside(self, chunk: Chunk, shard: Shard, arrays: Arrays) -> None:
        """Give a loop in C the streams' rows, and their order."""
        arrays[ORDER] = chunk.order[shard.span]
        arrays.update({rows_of_stream(k): x.values for k, x in enumerate(self.streams)})

    def gather_streams(self, chunk: Chunk, shard: Shard, arrays: Arrays) -> None:
        """Bring the rows of streams in packed order."""
        for k, x in enumerate(self.streams):
            take_rows(x.values, chunk.order[shard.span], arrays[f"X{k}"])

    # States ---------------------------------------------------------------------------------------

    def initial_states(self, scratch: Scratch) -> list[list[Array]]:
        """The parts of the state before the first step, of each shard."""
        states = []
        for shard in self.layout.shards:
            given, parts = iter(self.inits), []
            for is_given, state in zip(self.given, self.cell.program.states, strict=True):
                rows = scratch.take(shard.sentences.size, state.width)
                if is_given:
                    take_rows(next(given).values, shard.sentences, rows)
                else:
                    rows[...] = 0
                parts.append(rows)
            states.append(parts)
        return states

    def _states_between(self, scratch: Scratch) -> list[Array]:
        """The memory for the states between chunks."""
        if len(self.chunks) == 1:
            return []
        states = self.cell.program.states
        if self.batch.keeps:
            return [self.batch.saved[f"S{k}"] for k in range(len(states))]
        most = max([chunk.starts[-1].stop for chunk in self.chunks[1:]])
        return [scratch.take(most, state.width) for state in states]

    def _start(self, chunk: Chunk, number: int) -> slice:
        """The rows of a shard's states before a chunk, among those between chunks."""
        start, kept = chunk.starts[number], chunk.kept if self.batch.keeps else 0
        return slice(kept + start.start, kept + start.stop)

    def before(self, chunk: Chunk, number: int, initial: list[list[Array]]) -> list[Array]:
        """The states of a shard before a chunk."""
        if not chunk.shards[number].first:
            return initial[number]
        return [rows[self._start(chunk, number)] for rows in self._between]

    def given_to(self, shard: Shard) -> bool:
        """Whether the states before a chunk may be other than zeros."""
        return any(self.given) or shard.first > 0

    def _leave_states(self, chunk: Chunk, following: Chunk, wide: dict[str, Array]) -> None:
        """Copy the states after a chunk, of the sentences that run on."""
        for k, columns in enumerate(self.cell.following):
            rows = columns_of(wide, columns)
            for number, shard in enumerate(chunk.shards):
                place = self._start(following, number)
                if place.stop > place.start:
                    last = shard.start + shard.steps[-1][0]
                    self._between[k][place] = rows[last : last + place.stop - place.start]

    # Results --------------------------------------------------------------------------------------

    def _states_of_empty_sentences(self) -> None:
        """Set the last states of sentences without tokens to their initial ones."""
        empty = np.flatnonzero(self.layout.last < 0)
        given = iter(self.inits)
        for is_given, port in zip(self.given, self.batch.ports, strict=True):
            port.values[empty] = next(given).values[empty] if is_given else 0

    # Operators without generated code -------------------------------------------------------------

    def _make_generic(self, scratch: Scratch) -> None:
        keeps = self.batch.keeps and not self.recomputes
        self.generic = []
        for shard in self.layout.shards:
            memories = self.sorted_memories(shard, scratch)
            self.generic.append(
                {
                    number: GenericStep(op, memories, shard.sentences.size, self.batch.dtype, keeps)
                    for number, op in self.cell.generic.items()
                }
            )

    def sorted_memories(self, shard: Shard, scratch: Scratch) -> list[Ragged]:
        """The memories' rows in the shard's order of sentences."""
        memories = []
        for memory in self.memories:
            index, lengths = memory_rows(memory, shard.sentences)
            rows = scratch.take(index.size, memory.values.shape[1])
            take_rows(memory.values, index, rows)
            memories.append(Ragged(rows, lengths.tolist()))
        return memories

    # Statistics -----------------------------------------------------------------------------------

    def count_forward(self) -> None:
        """Kernels of one forward."""
        cell = self.cell
        around = len(self.chunks) * (len(cell.stream_maps) + 2 * len(self.streams))
        self.count(cell.launches, cell.from_state, around)

    def count(self, a_step: int, of_state: int, around: int) -> None:
        """Kernels of one pass: those of the loop, and those around it in each shard.

        Args:
            of_state: those of a step that are left out where the state is zeros.
        """
        shards = self.layout.shards
        steps = sum([len(shard.steps) for shard in shards])
        zeros = 0 if any(self.given) else sum([len(shard.steps) > 0 for shard in shards])
        self.batch.launches += steps * a_step - zeros * of_state + len(shards) * around


def bind_states(arrays: Arrays, given: bool, states: Sequence[Array]) -> None:
    """Give generated code the states before a chunk."""
    arrays["given"] = given
    for k, rows in enumerate(states):
        arrays[f"I{k}"] = rows


def take_rows(rows: Array, index: Array, out: Array) -> None:
    """out[n] = rows[index[n]]; an index of -1 reads anything."""
    np.take(rows, index, axis=0, out=out, mode="clip")
