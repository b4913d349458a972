"""`ScanBackward`: one backward of a batch of scans, last chunk first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dynbatch.cells.generic import room_of
from dynbatch.cells.linear_maps import WeightGradients, stream_gradients
from dynbatch.cells.scan.arrays import lengths_of, of_shards, scan_arrays
from dynbatch.cells.scan.prefix import Chunk, Shard, cut, of_pass
from dynbatch.cells.scan.run import ScanRun, bind_states, take_rows
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, Scratch, columns_of, memory_rows
from dynbatch.compiler.buffers import Role
from dynbatch.compiler.c.loop_text import ORDER, OUTPUT_GRADIENTS
from dynbatch.kernels.c.linear_gradients import scatter_tasks
from dynbatch.kernels.c.runtime.tasks import NativeTask
from dynbatch.kernels.linear_gradients import scatter_products
from dynbatch.kernels.runtime import parallel
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class ScanBackward:
    """One backward of a `ScanRun`: weights, streams, initial states and memories.

    All arrays but those that forward left have the size of a chunk. If forward left only the states
    between chunks, each chunk's forward is recomputed first.
    """

    def __init__(
        self, run: ScanRun, batch: Batch, dy: Ragged, dxs: Sequence[Ragged | None]
    ) -> None:
        self._run = run
        self._batch = batch
        self._dy = dy
        streams = len(run.streams)
        states = streams + len(run.inits)
        self._of_streams, self._of_inits = dxs[:streams], dxs[streams:states]
        self._of_memories = dxs[states:]
        run.read([batch.input(k) for k in range(len(batch.inputs))])
        scratch = Scratch(batch.scratch)
        self._tasks = run.tasks()
        self._chunks = run.chunks
        if not run.recomputes:
            extents = of_pass(lengths_of(batch), 0, leaves_all=False)
            self._chunks = cut(run.layout, extents)
        self._arrays = scan_arrays(run.cell, self._chunks, scratch, run.native, self._tasks)
        self._initial = run.initial_states(scratch)
        if run.recomputes:
            self._arrays.add_forward(streams=False)
        else:
            self._arrays.add_streams()
        self._arrays.add_values(None if run.recomputes else batch.saved)
        self._arrays.add_backward()
        self._carried = self._carry(scratch)
        self._wanted: dict[int, Array] = {}
        self._memories: list[list[Ragged]] = []
        self._sums: list[list[Ragged | None]] = []
        if run.cell.generic:
            self._bind_memories(scratch)
        groups = [run.cell.gradient_buffers, run.cell.storage.temporary]
        self._arrays.add_temporary(*groups if run.recomputes else groups[:1])

    def run(self) -> None:
        """Run all chunks, then compute the gradients that span them."""
        run, batch = self._run, self._batch
        gradients = batch.parameter_gradients()
        weights = WeightGradients(run.cell, gradients, self._tasks)
        sinks = [ShardGradients() for _ in run.generic]
        for generic, sink in zip(run.generic, sinks, strict=True):
            for step in generic.values():
                step.give_gradients_to(sink)
                step.keeps = True
        for k, dx in enumerate(self._of_streams):
            if dx is not None and k in run.cell.reached:
                self._wanted[k] = dx.values
            elif dx is not None:
                dx.values[...] = 0
        for chunk in reversed(self._chunks):
            self._chunk(chunk, weights)
        if self._tasks is not None:
            self._tasks.run()
        weights.finish()
        for sink in sinks:
            sink.pass_on(gradients)
        self._gradients_of_states()
        self._sort_memories()
        self._count()

    # Arrays ---------------------------------------------------------------------------------------

    def _carry(self, scratch: Scratch) -> list[list[Array]]:
        """Gradients of the last states, which steps carry on, of each shard."""
        carried_parts = []
        for k, value in enumerate(self._run.cell.program.states):
            carried = []
            for shard in self._run.layout.shards:
                rows = scratch.take(shard.sentences.size, value.width)
                take_rows(self._batch.port_gradients[k].values, shard.sentences, rows)
                carried.append(rows)
            self._arrays.add_of_shards(f"C{k}", carried)
            carried_parts.append(carried)
        return carried_parts

    def _bind_memories(self, scratch: Scratch) -> None:
        """Memories in the order of each shard's sentences, and zeros for their gradients.

        Gradients are summed where they belong, but in that order; see `_sort_memories`.
        """
        run = self._run
        first = [0] * len(run.memories)
        for shard, generic in zip(run.layout.shards, run.generic, strict=True):
            memories = run.sorted_memories(shard, scratch)
            sums: list[Ragged | None] = []
            for place, (memory, dx) in enumerate(zip(memories, self._of_memories, strict=True)):
                start, first[place] = first[place], first[place] + memory.values.shape[0]
                rows = None if dx is None else dx.values[start : first[place]]
                if rows is not None:
                    rows[...] = 0
                sums.append(None if rows is None else memory.like(rows))
            counts = [memory.values.shape[0] for memory in memories]
            for number, step in generic.items():
                step.memories, step.memory_gradients = memories, sums
                room = room_of(run.cell.generic[number], counts)
                step.give_room(scratch.take(room, 1).reshape(-1))
            self._memories.append(memories)
            self._sums.append(sums)

    # Chunks -------------------------------------------------------------------------------------

    def _chunk(self, chunk: Chunk, weights: WeightGradients) -> None:
        run = self._run
        wide = self._arrays.wide(chunk.order.size)
        shards = of_shards(self._arrays, chunk, wide)
        for number, (shard, own) in enumerate(shards):
            bind_states(own, run.given_to(shard), self._before(chunk, number))
        if self._tasks is not None:
            self._tasks.then(*[self._shard_tasks(chunk, k, *each) for k, each in enumerate(shards)])
        else:
            parallel.run(
                [partial(self._run_shard, chunk, k, *each) for k, each in enumerate(shards)]
            )
        for group in run.cell.map_groups:
            # Rows of kept values are one stretch in each shard only.
            kept = not run.recomputes and any(
                [run.cell.map_inputs[number].buffer.role is Role.PACKED for number in group]
            )
            for shard, part in shards if kept else [(chunk.shards[0], wide)]:
                xs = [self._map_input(number, part, shard) for number in group]
                weights.add(group, xs, columns_of(part, run.cell.of_maps[group[0]]))
        if self._tasks is not None and run.generic:  # it is given the next chunk's arrays then
            self._tasks.run()
            finish = [step.finish for generic in run.generic for step in generic.values()]
            parallel.run(finish)

    def _before(self, chunk: Chunk, number: int) -> list[Array]:
        """The states of a shard before a chunk."""
        run = self._run
        if run.recomputes or not chunk.shards[number].first:
            return run.before(chunk, number, self._initial)
        start, first = chunk.starts[number], chunk.before[number]
        rows = slice(first, first + start.stop - start.start)
        kept = self._arrays.kept
        return [columns_of(kept, columns)[rows] for columns in run.cell.following]

    def _run_shard(self, chunk: Chunk, number: int, shard: Shard, arrays: Arrays) -> None:
        run = self._run
        if run.recomputes:
            run.run_forward(chunk, number, shard, arrays, None)
        generic = run.generic_steps(number, arrays)
        for step in generic:
            step.begin_backward(shard.first, shard.counts)
        self._gather(chunk, shard, arrays)
        run.loop.bind_backward(arrays)(shard.blocks)
        for step in generic:
            step.finish()
            if run.recomputes:
                step.forget()
        for products in stream_gradients(run.cell, arrays, self._wanted, chunk.order[shard.span]):
            scatter_products(*products)

    def _shard_tasks(
        self, chunk: Chunk, number: int, shard: Shard, arrays: Arrays
    ) -> list[NativeTask]:
        """Backward of one shard in one chunk, all of it in C."""
        run = self._run
        assert run.native is not None
        for step in run.generic_steps(number, arrays):
            step.begin_backward(shard.first, shard.counts)
        run.bind_outside(chunk, shard, arrays)
        arrays[OUTPUT_GRADIENTS] = self._dy.values
        tasks = [run.native.steps(1, arrays, shard.steps)]
        for products in stream_gradients(run.cell, arrays, self._wanted, arrays[ORDER]):
            tasks += scatter_tasks(*products, (0, shard.rows))
        return tasks

    def _gather(self, chunk: Chunk, shard: Shard, arrays: Arrays) -> None:
        """Bring streams and outputs' gradients in packed order, and states as steps found them."""
        run = self._run
        if not run.recomputes:
            run.gather_streams(chunk, shard, arrays)
        take_rows(self._dy.values, chunk.order[shard.span], arrays["dY"])
        for part in run.cell.read_before if shard.rows else ():
            rows, running = arrays[f"H{part}"], shard.steps[0][2]
            source = columns_of(arrays, run.cell.following[part])
            take_rows(source, chunk.previous[shard.span] - shard.start, rows)
            rows[:running] = arrays[f"I{part}"][:running]

    def _map_input(self, number: int, arrays: Arrays, first: Shard) -> Array:
        """All rows that a wide linear map multiplied, packed, but zeros of the first shard."""
        cell = self._run.cell
        rows = columns_of(arrays, cell.map_inputs[number])
        is_zero = number in cell.state_maps and not self._run.given_to(first)
        return rows[first.steps[0][2] :] if is_zero and first.steps else rows

    # At last --------------------------------------------------------------------------------------

    def _gradients_of_states(self) -> None:
        run = self._run
        given = [k for k, is_given in enumerate(run.given) if is_given]
        for number, shard in enumerate(run.layout.shards):
            for k, dx in zip(given, self._of_inits, strict=True):
                if dx is not None:
                    dx.values[shard.sentences] = self._carried[k][number]

    def _sort_memories(self) -> None:
        """Bring the memories' gradients in sentence order, using the memories as scratch."""
        run = self._run
        for memories, sums in zip(self._memories, self._sums, strict=True):
            for memory, gradient in zip(memories, sums, strict=True):
                if gradient is not None:
                    memory.values[...] = gradient.values
        for shard, memories in zip(run.layout.shards, self._memories, strict=False):
            for k, (dx, memory) in enumerate(zip(self._of_memories, memories, strict=True)):
                if dx is not None:
                    index, _ = memory_rows(run.memories[k], shard.sentences)
                    dx.values[index] = memory.values

    def _count(self) -> None:
        run, cell, batch = self._run, self._run.cell, self._batch
        around = 1 + 2 * len(run.streams) + len(cell.stream_maps)
        run.count(cell.launches_backward, len(cell.numpy.carry), around)
        if run.recomputes:
            run.count_forward()
        shards = [shard for chunk in self._chunks for shard in chunk.shards]
        blocks = sum([len(shard.blocks) for shard in shards])
        batch.launches += blocks * len(cell.numpy.factors)
        batch.launches += len(cell.maps) * len(self._chunks)
