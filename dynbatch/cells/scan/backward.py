"""`ScanBackward`: one backward of a batch of scans, last chunk first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.linear_maps import WeightGradients, stream_gradients, write_products
from dynbatch.cells.scan.prefix import Shard
from dynbatch.cells.scan.run import (
    ScanRun,
    memories_of,
    of_shard,
    sorted_inputs,
    take_rows,
    take_streams,
)
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, columns_of, memory_rows
from dynbatch.compiler.buffers import Role
from dynbatch.compiler.c.loop_text import IN_16_BITS, OUTPUT_GRADIENTS
from dynbatch.kernels.runtime.tasks import Task, Tasks
from dynbatch.nodes.batch import Batch
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
        self._of_streams, self._of_inits, self._of_memories = sorted_inputs(batch, dxs)
        run.read_again()
        rooms, self._tasks = run.take(backward=True), Tasks()
        self._chunks = run.chunks(leaves_all=False)
        self._arrays = run.arrays(rooms, self._tasks, backward=True)
        self._native = run.native
        kept = self._arrays.kept.values()
        self._reads_16_bits = any([array.dtype == np.uint16 for array in kept])
        if self._reads_16_bits:
            self._native = run.cell.in_c.functions(batch.dtype, in_16_bits=True)
        self._initial = run.in_order(run.inits, rooms, "I")
        self._carried = run.in_order(batch.port_gradients, rooms, "C")  # from step to step
        self._memories = run.sorted_memories(rooms) if run.cell.generic else []
        self._bind_memories()

    def run(self) -> Tasks:
        """Write down all chunks, then the gradients that span them."""
        run, batch = self._run, self._batch
        gradients = batch.parameter_gradients()
        weights = WeightGradients(run.cell, gradients, partial(write_products, self._tasks))
        sinks = [ShardGradients() for generic in run.generic if generic]
        for generic, sink in zip(filter(None, run.generic), sinks, strict=True):
            for step in generic.values():
                step.give_gradients_to(sink)
                step.keeps = True
        self._wanted = run.wanted(self._of_streams)
        for dx in self._of_memories:
            if dx is not None:
                dx.values[...] = 0
        for chunk in reversed(self._chunks):
            self._chunk(chunk, weights)
            if run.cell.generic:
                is_last = not chunk[0].first
                self._tasks.then(
                    *[[partial(self._finish, each.values(), is_last)] for each in run.generic]
                )
        self._tasks.at_last(weights.finish)
        for sink in sinks:
            self._tasks.at_last(partial(sink.pass_on, gradients))
        self._tasks.at_last(partial(run.put, self._carried, self._of_inits))
        self._tasks.at_last(self._sort_memories)
        run.count_backward(len(self._chunks))
        return self._tasks

    # Arrays ---------------------------------------------------------------------------------------

    def _bind_memories(self) -> None:
        """Have operators add to the memories' gradients where these belong.

        But the sums are in the order of the shards' sentences; see `_sort_memories`.
        """
        pairs = zip(self._memories, self._of_memories, strict=False)
        sums = [None if dx is None else memory.like(dx.values) for memory, dx in pairs]
        for shard, generic in zip(self._run.shards, self._run.generic, strict=True):
            for step in generic.values():
                step.memories = memories_of(self._memories, shard)
                step.memory_gradients = memories_of(sums, shard)

    # Chunks -------------------------------------------------------------------------------------

    def _chunk(self, chunk: list[Shard], weights: WeightGradients) -> None:
        run = self._run
        wide = self._arrays.of_all(sum([shard.rows for shard in chunk]))
        outside = {OUTPUT_GRADIENTS: self._dy.values}
        shards = run.of_shards(self._arrays, wide, chunk, self._states_before(chunk), outside)
        for shard, arrays in shards:
            carried = of_shard(self._carried, shard)
            arrays.update({f"C{k}": rows for k, rows in enumerate(carried)})
            if self._reads_16_bits and chunk[0].first:
                arrays["given"] = IN_16_BITS
        is_first = chunk is self._chunks[-1]
        self._tasks.then(
            *[self._backward_tasks(k, *each, is_first) for k, each in enumerate(shards)]
        )
        for group in run.cell.map_groups:
            # Rows of kept values are one stretch in each shard only.
            kept = not run.recomputes and any(
                [run.cell.map_inputs[number].buffer.role is Role.PACKED for number in group]
            )
            for shard, part in shards if kept else [(chunk[0], wide)]:
                xs = [self._map_input(number, part, shard) for number in group]
                weights.add(group, xs, columns_of(part, run.cell.of_maps[group[0]]))

    def _finish(self, generic: Iterable[GenericStep], is_last: bool) -> None:
        for step in generic:
            if is_last:
                step.finish()
            else:
                step.sum_up()
            if self._run.recomputes:
                step.forget()

    def _states_before(self, chunk: list[Shard]) -> list[list[Array]]:
        return [
            [self._part_before(k, shard) if shard.first else rows for k, rows in enumerate(initial)]
            for shard in chunk
            for initial in [of_shard(self._initial, shard)]
        ]

    def _part_before(self, part: int, shard: Shard) -> Array:
        columns = self._run.cell.following[part]
        if columns is None:
            return self._initial[part][shard.states]
        if self._run.recomputes:
            return self._batch.saved[f"S{part}"][shard.found]
        return columns_of(self._arrays.kept, columns)[shard.before]

    def _backward_tasks(
        self, number: int, shard: Shard, arrays: Arrays, is_first: bool
    ) -> list[Task]:
        run = self._run
        span = (0, shard.rows)
        tasks = run.forward_tasks(number, shard, arrays, is_first) if run.recomputes else []
        tasks += run.begin_generic(GenericStep.begin_backward, number, shard, is_first)
        if self._native is not None and run.is_in_c:
            tasks.append(self._native.steps(1, arrays, shard.steps))
        else:
            tasks.append(partial(self._run_backward, shard, arrays))
        return tasks + stream_gradients(run.cell, arrays, self._wanted, shard.order, span)

    def _run_backward(self, shard: Shard, arrays: Arrays) -> None:
        run = self._run
        if not shard.rows:
            return
        if run.native is None:  # in C the loop does that
            if not run.recomputes:
                take_streams(arrays, range(len(run.streams)))
            take_rows(arrays[OUTPUT_GRADIENTS], shard.order, arrays["dY"])
            for part in run.cell.read_before:
                columns = run.cell.following[part]
                assert columns is not None  # no map reads a part that no step changes
                left = columns_of(arrays, columns)
                take_rows(left, shard.earlier(), arrays[f"H{part}"])
                arrays[f"H{part}"][: shard.running] = arrays[f"I{part}"][: shard.running]
        run.loop.bind(1, arrays)(shard.numbered)

    def _map_input(self, number: int, arrays: Arrays, first: Shard) -> Array:
        """All rows that a wide linear map multiplied, packed, but zeros of the first shard."""
        cell = self._run.cell
        rows = columns_of(arrays, cell.map_inputs[number])
        finds_zeros = number in cell.state_maps and not self._run.finds and not first.first
        return rows[first.running :] if finds_zeros else rows

    # At last --------------------------------------------------------------------------------------

    def _sort_memories(self) -> None:
        """Bring the memories' gradients in sentence order, using the memories as scratch."""
        run = self._run
        for k, memory in enumerate(self._memories):
            dx = self._of_memories[k]
            if dx is not None:
                memory.values[...] = dx.values
                index, _ = memory_rows(run.memories[k], run.sentences)
                dx.values[index] = memory.values
