"""`DeviceScanRun`: one batch of scans on a GPU, forward and back."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import write_products
from dynbatch.cells.cuda.parameter_gradients import add_gradients
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.cuda.steps import ScanSteps
from dynbatch.cells.scan.prefix import Shard, cut
from dynbatch.cells.scan.run import (
    ScanBatch,
    chunks_of,
    in_order_of,
    memory_rooms,
    sorted_inputs,
)
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Arrays, memory_rows
from dynbatch.compiler.cuda.cell import DeviceCell
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
        self.chunks = [shard for (shard,) in cut(self.shards, chunks_of(batch, leaves_all=True))]
        self.queue = queue()
        self.queue.kernels(batch.dtype).add(self._device.source)

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> Works:
        """Write every step down, and how outputs and last states come into sentence order."""
        works = Works()
        batch, taken = self.batch, self.take(backward=False)
        kept = batch.saved if batch.keeps else taken
        keeps = batch.keeps and not batch.recompute
        for chunk, following in zip(self.chunks, [*self.chunks[1:], None], strict=True):
            gathers = RowGathers(self.queue, batch.dtype)
            self._write_forward(works, chunk, taken, kept, gathers, keeps, not chunk.first)
            works.then(self._outputs(y, kept, following))
        return works

    def _write_forward(
        self, works: Works, chunk: Shard, taken: Arrays, kept: dict[str, Array],
        gathers: RowGathers, keeps: bool, fills: bool,
    ) -> None:  # fmt: skip
        """Write the steps of a chunk down.

        Args:
            taken:  the arrays of the pass.
            keeps:  whether its backward follows.
            fills:  see `ScanRows.start`; the same goes for memories.
        """
        batch, loop = self.batch, self.loop
        changed = loop.program.changed_states() if chunk.first else ()
        left = {k: kept[f"S{k}"][chunk.found] for k in changed}
        self.rows = rows = ScanRows(self, chunk, left)
        self._add_arrays(taken, kept)
        rows.start(self, kept, gathers, fills)
        if fills:
            rooms = [kept[name] for name in memory_rooms(batch, "M")]
            self._memories = in_order_of(rows.sentences, self.memories, rooms, gathers.pick)
        works.then(gathers)
        rows.maps_ahead(works)
        count = rows.sentences.size
        self._generic = DeviceGenericSteps(rows, batch, self._memories, count, keeps)
        works.then(ScanSteps(self._device, rows, self._generic, 0))

    def _add_arrays(self, taken: Arrays, kept: dict[str, Array]) -> None:
        """Add the arrays of a chunk: those with a row for each token have its rows."""
        loop, rows = self.loop, self.rows
        wide = [*self.cell.stream_rows, *self.cell.backward_rows, *loop.gradients.packed]
        names = {*[b.name for b in (*wide, *loop.storage.packed)]}
        names |= {f"dX{k}" for k in self.cell.reached}
        count = rows.shard.rows
        rows.add({name: x[:count] if name in names else x for name, x in taken.items()})
        if not self.batch.recompute:
            rows.add({b.name: kept[b.name] for b in loop.storage.packed})

    def _outputs(self, y: Ragged, kept: dict[str, Array], following: Shard | None) -> RowGathers:
        rows, gathers = self.rows, RowGathers(self.queue, self.batch.dtype)
        shard = rows.shard
        for value, column in self.loop.program.exports_at():
            columns = y.values[:, column : column + value.width]
            gathers.pick(rows.whole(value), shard.order, columns, puts=True)
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
        taken, gathers = self.take(backward=True), RowGathers(self.queue, batch.dtype)
        carried = self._carried(taken, gathers)
        gradients, sink = batch.parameter_gradients(), ShardGradients()
        later = gradients.later and len(self.chunks) == 1
        write = partial(write_products, self.queue, works, later)
        weights = WeightGradients(self.cell, gradients, write)
        memory_gradients: list[Ragged] = []
        rooms = [taken[name] for name in memory_rooms(batch, "dM")]
        for chunk in reversed(self.chunks):
            if batch.recompute:
                self._write_forward(works, chunk, taken, batch.saved, gathers, True, False)
                gathers = RowGathers(self.queue, batch.dtype)
            else:
                self._add_arrays(taken, batch.saved)
                self.rows.start(self, batch.saved, gathers, False)
            rows, generic = self.rows, self._generic
            rows.add(carried)
            self._start_backward(gathers, dy, dxs)
            if generic and not memory_gradients:
                zeros = partial(_pick_zeros, gathers)
                memory_gradients = in_order_of(rows.sentences, self.memories, rooms, zeros)
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


def _pick_zeros(gathers: RowGathers, source: Array, index: Array, out: Array) -> None:
    gathers.pick(source, np.full(index.size, -1), out)
