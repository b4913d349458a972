"""`DeviceScanRun`: one batch of scans on a GPU, forward and back."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import wide_rooms, write_products
from dynbatch.cells.cuda.parameter_gradients import add_gradients
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.cells.loop_arrays import loop_rooms
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.cuda.steps import ScanSteps
from dynbatch.cells.scan.prefix import Shard, cut
from dynbatch.cells.scan.run import ScanBatch, chunks_of, left_values, memory_rooms, sorted_inputs
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, Rooms, Scratch, memory_rows
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.kernels.arrays import fill
from dynbatch.kernels.runtime.device_loops import RowGathers, Works, queue
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceScanRun(ScanBatch):
    """One batch of scans on a GPU: forward, and later backward.

    With `batch.recompute` both go chunk by chunk. Forward leaves the states between chunks, and
    backward runs each chunk's forward again; else there is one chunk.
    """

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        super().__init__(batch, y, xs)
        self._device: DeviceCell = self.cell.on_device
        self.loop = self._device.loop
        self.chunks = [shard for (shard,) in cut(self.shards, chunks_of(batch))]
        self.queue = queue()
        self.queue.kernels(batch.dtype).add(self._device.source)

    @staticmethod
    def saved(batch: Batch) -> Rooms:
        """The values that forward leaves, and what it gathered: weights, and sorted memories."""
        loop: Loop = batch.first.cell.on_device.loop
        return left_values(batch, loop.storage) | wide_rooms(loop) | memory_rooms(batch, "M")

    @staticmethod
    def rooms(batch: Batch, backward: bool) -> Rooms:
        """The arrays of a pass: those of all chunks, and those of the largest one."""
        tokens = max([chunk.rows for chunk in chunks_of(batch)])
        chunk = DeviceScanRun.chunk_rooms(batch, tokens, backward)
        return DeviceScanRun.pass_rooms(batch, backward) | chunk

    @staticmethod
    def pass_rooms(batch: Batch, backward: bool) -> Rooms:
        """The arrays of all chunks: values left by a forward alone, or gradients in backward."""
        if not backward:
            return {} if batch.keeps else DeviceScanRun.saved(batch)
        loop: Loop = batch.first.cell.on_device.loop
        pairs = zip(loop.carried, loop.program.states, strict=True)
        rooms = {name: (len(batch.nodes), v.width) for names, v in pairs for name in names}
        return rooms | memory_rooms(batch, "dM")

    @staticmethod
    def chunk_rooms(batch: Batch, tokens: int, backward: bool) -> Rooms:
        """The arrays of a chunk of so many rows."""
        cell, sentences, again = batch.first.cell, len(batch.nodes), batch.recompute > 0
        loop, dtype = cell.on_device.loop, batch.dtype
        rooms = loop_rooms(cell, loop, tokens, sentences, dtype, not again, backward, again)
        rooms |= {f"I{k}": (sentences, v.width) for k, v in enumerate(cell.program.states)}
        if backward:
            streams = cell.program.streams
            rooms |= {f"dX{k}": (tokens, streams[k].width) for k in cell.reached}
        return rooms

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> Works:
        """Write every step down, and how outputs and last states come into sentence order."""
        works = Works()
        batch, scratch = self.batch, Scratch(self.batch.scratch)
        kept = batch.saved if batch.keeps else scratch.take_all(self.pass_rooms(batch, False))
        keeps = batch.keeps and not batch.recompute
        for chunk, following in zip(self.chunks, [*self.chunks[1:], None], strict=True):
            gathers = RowGathers(self.queue, batch.dtype)
            arrays = scratch.rest().take_all(self.chunk_rooms(batch, chunk.rows, False))
            self._write_forward(works, chunk, arrays, kept, gathers, keeps, not chunk.first)
            works.then(self._outputs(y, kept, following))
        return works

    def _write_forward(
        self, works: Works, chunk: Shard, arrays: Arrays, kept: dict[str, Array],
        gathers: RowGathers, keeps: bool, fills: bool,
    ) -> None:  # fmt: skip
        """Write the steps of a chunk down.

        Args:
            arrays: those of its `chunk_rooms`.
            keeps:  whether its backward follows.
            fills:  see `ScanRows.start`; the same goes for memories.
        """
        batch, loop = self.batch, self.loop
        changed = loop.program.changed_states() if chunk.first else ()
        left = {k: kept[f"S{k}"][chunk.found] for k in changed}
        self.rows = rows = ScanRows(self, chunk, left)
        rows.add(arrays)
        if not batch.recompute:
            rows.add({b.name: kept[b.name] for b in loop.storage.packed})
        rows.start(self, kept, gathers, fills)
        if fills:
            rooms = [kept[name] for name in memory_rooms(batch, "M")]
            self._memories = rows.sorted_memories(self.memories, gathers, rooms) if rooms else []
        works.then(gathers)
        rows.maps_ahead(works)
        count = rows.sentences.size
        self._generic = DeviceGenericSteps(rows, batch, self._memories, count, keeps)
        works.then(ScanSteps(self._device, rows, self._generic, 0))

    def _outputs(self, y: Ragged, kept: dict[str, Array], following: Shard | None) -> RowGathers:
        rows, column, gathers = self.rows, 0, RowGathers(self.queue, self.batch.dtype)
        shard = rows.shard
        for value in self.loop.program.exports:
            columns = y.values[:, column : column + value.width]
            gathers.pick(rows.whole(value), shard.order, columns, puts=True)
            column += value.width
        index, last = -1 - np.arange(rows.sentences.size), shard.last()
        index[rows.sentences[: last.size]] = last
        for k, value in enumerate(self.loop.program.following):
            init, port = self.inits[k], self.batch.ports[k].values
            other = None if init is None else init.values
            if value is self.loop.program.states[k]:  # no step changes it
                gathers.pick(port, -1 - np.arange(index.size), port, port if shard.first else other)
                continue
            gathers.pick(rows.whole(value), index, port, port if shard.first else other)
            if following is not None:
                between = kept[f"S{k}"][following.found]
                gathers.pick(rows.whole(value), last[: following.running], between)
        return gathers

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> Works:
        """Write every step back down; then weights, streams, initial states and memories.

        Chunks go one after the other, the last first.
        """
        works = Works()
        self.read_again()
        scratch, gathers = Scratch(batch.scratch), RowGathers(self.queue, batch.dtype)
        taken = scratch.take_all(self.pass_rooms(batch, True))
        carried = self._carried(taken, gathers)
        gradients, sink = batch.parameter_gradients(), ShardGradients()
        later = gradients.later and len(self.chunks) == 1
        write = partial(write_products, self.queue, works, later)
        weights = WeightGradients(self.cell, gradients, write)
        memory_gradients: list[Ragged] = []
        rooms = [taken[name] for name in memory_rooms(batch, "dM")]
        for chunk in reversed(self.chunks):
            arrays = scratch.rest().take_all(self.chunk_rooms(batch, chunk.rows, True))
            if batch.recompute:
                self._write_forward(works, chunk, arrays, batch.saved, gathers, True, False)
                gathers = RowGathers(self.queue, batch.dtype)
            else:
                self.rows.add(arrays)
                self.rows.add({b.name: batch.saved[b.name] for b in self.loop.storage.packed})
                self.rows.start(self, batch.saved, gathers, False)
            rows, generic = self.rows, self._generic
            rows.add(carried)
            self._start_backward(gathers, dy, dxs)
            if generic and not memory_gradients:
                memory_gradients = rows.sorted_memories(self.memories, gathers, rooms, zeros=True)
            works.then(gathers)
            generic.begin_backward(memory_gradients, sink)
            works.then(ScanSteps(self._device, rows, generic, 1))
            works.call(generic.finish)
            if not chunk.first:
                works.call(partial(sink.pass_on, gradients))
            add_gradients(self.cell, rows, weights, works)
            works.then(self._input_gradients(dxs, memory_gradients, works))
            gathers = RowGathers(self.queue, batch.dtype)
            if len(chunk.steps) % 2:  # what its first step left lies in the other array
                for one, other in self.loop.carried:
                    carried[one], carried[other] = carried[other], carried[one]
        works.at_last(batch.saved.clear)  # gradients have taken its place: no second backward
        return works

    def _carried(self, arrays: Arrays, gathers: RowGathers) -> dict[str, Array]:
        """The arrays for gradients of the state, which begin as those of the last states."""
        sentences, carried = self.chunks[0].sentences, {}
        for names, state in zip(self.loop.carried, self.loop.program.states, strict=True):
            gradient = self.batch.port_gradients[state.number].values
            for name in dict.fromkeys(names):
                carried[name] = arrays[name]
                gathers.pick(gradient, sentences, carried[name])
        return carried

    def _start_backward(
        self, gathers: RowGathers, dy: Ragged, dxs: tuple[Ragged | None, ...]
    ) -> None:
        rows, loop = self.rows, self.loop
        gathers.pick(dy.values, rows.shard.order, rows.array("dY"))
        rows.gather_found(self.inits, gathers)
        reached = self.cell.reached
        for k in range(len(loop.program.streams)):
            if k not in loop.read_again and (dxs[k] is None or k not in reached):
                rows.add({f"dX{k}": None})

    def _input_gradients(
        self, dxs: tuple[Ragged | None, ...], memory_gradients: list[Ragged], works: Works
    ) -> RowGathers:
        """Gathers that overwrite gradients of the chunk's streams; then of states and memories.

        Args:
            memory_gradients: in the order of the sentences; empty where no operator reads one.
        """
        rows, gathers = self.rows, RowGathers(self.queue, self.batch.dtype)
        reached = self.cell.reached
        of_streams, of_inits, of_memories = sorted_inputs(self.batch, dxs)
        for k, dx in enumerate(of_streams):
            if dx is not None and k in reached:
                gathers.pick(rows.array(f"dX{k}"), rows.shard.order, dx.values, puts=True)
            elif dx is not None and not rows.shard.first:
                works.call(partial(fill, dx.values, 0))
        if rows.shard.first:
            return gathers
        back = np.argsort(rows.sentences, kind="stable")
        for k, dx in enumerate(of_inits):
            if dx is not None:
                gathers.pick(rows.left(k), back, dx.values)
        for number, (memory, dx) in enumerate(zip(self.memories, of_memories, strict=True)):
            if dx is not None and memory_gradients:
                order = np.argsort(memory_rows(memory, rows.sentences)[0], kind="stable")
                gathers.pick(memory_gradients[number].values, order, dx.values)
            elif dx is not None:
                works.call(partial(fill, dx.values, 0))
        return gathers
