"""`DeviceScanRun`: one batch of scans on a GPU, forward and back."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import GradientRows, wide_rooms
from dynbatch.cells.scan.cuda.parameter_gradients import ScanGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.cuda.steps import ScanSteps
from dynbatch.cells.scan.prefix import Extent, Shard, cut, extents, prefix_layout
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.kernels.runtime.device_loops import DeviceMatrix, RowGathers, Works, matrix_of, queue
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceScanRun:
    """One batch of scans: forward, and later backward.

    With `batch.recompute` both go chunk by chunk. Forward leaves the states between chunks, and
    backward runs each chunk's forward again; else there is one chunk.
    """

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        self.batch = batch
        self.cell: DeviceCell = batch.first.cell.on_device
        self.loop = self.cell.loop
        self._xs = xs
        lengths = np.asarray(y.lengths, np.int64)
        shards = prefix_layout(lengths, y.offsets, batch.first.reverse, 1)
        self.chunks = [shard for (shard,) in cut(shards, extents(lengths, batch.recompute))]
        self.queue = queue()
        self.queue.kernels(batch.dtype).add(self.cell.source)

    @staticmethod
    def saved(batch: Batch) -> dict[str, tuple[int, int]]:
        """The values that forward leaves: all, or states between chunks; and what it gathered:
        weights, and sorted memories.
        """
        loop: Loop = batch.first.cell.on_device.loop
        chunks = chunks_of(batch)
        gathered = wide_rooms(loop) | {
            f"M{k}": room for k, room in enumerate(DeviceScanRun.memory_rooms(batch))
        }
        if not batch.recompute:
            return {b.name: (chunks[0].rows, b.width) for b in loop.storage.packed} | gathered
        between = sum([chunk.running for chunk in chunks[1:]])
        changed = loop.program.changed_states() if between else {}
        return {f"S{k}": (between, v.width) for k, v in changed.items()} | gathered

    @staticmethod
    def memory_rooms(batch: Batch) -> list[tuple[int, int]]:
        """Rows and width of each memory of all sentences that an operator of the loop reads."""
        program = batch.first.cell.program
        if not program.generic:
            return []
        rows: list[int] = type(batch.first).memory_rows(batch)
        return [(n, memory.width) for n, memory in zip(rows, program.memories, strict=True)]

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        loop: Loop = batch.first.cell.on_device.loop
        program = loop.program
        tokens = max([chunk.rows for chunk in chunks_of(batch)])
        sentences = len(batch.nodes)
        states = sum([v.width for v in program.states])
        streams = sum([v.width for v in program.streams])
        total: int = tokens * streams + sentences * states
        if not backward or batch.recompute:
            total += sentences * sum([b.width for b in loop.storage.temporary])
        if batch.recompute:
            total += tokens * sum([b.width for b in loop.storage.packed])
        if not backward:
            kept = DeviceScanRun.saved(batch).values()
            return total + (0 if batch.keeps else sum([rows * width for rows, width in kept]))
        per_token = sum([b.width for b in loop.gradients.packed]) + streams + loop.width
        per_token += sum([state.width for state in loop.found])
        per_sentence = sum([b.width for b in loop.gradients.temporary]) + 2 * states
        total += sum([rows * width for rows, width in DeviceScanRun.memory_rooms(batch)])
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> Works:
        """Write every step down, and how outputs and last states come into sentence order."""
        works = Works()
        batch, scratch = self.batch, Scratch(self.batch.scratch)
        kept = batch.saved
        if not batch.keeps:
            kept = {name: scratch.take(*size) for name, size in self.saved(batch).items()}
        keeps = batch.keeps and not batch.recompute
        for chunk, following in zip(self.chunks, [*self.chunks[1:], None], strict=True):
            gathers = RowGathers(self.queue, batch.dtype)
            self._write_forward(works, chunk, scratch.rest(), kept, gathers, keeps, not chunk.first)
            works.then(self._outputs(y, kept, following))
        return works

    def _write_forward(
        self, works: Works, chunk: Shard, scratch: Scratch, kept: dict[str, Array],
        gathers: RowGathers, keeps: bool, fills: bool,
    ) -> None:  # fmt: skip
        """Write the steps of a chunk down.

        Args:
            scratch: has room for its values, where forward does not leave them.
            keeps:   whether its backward follows.
            fills:   see `ScanRows.start`; the same goes for memories.
        """
        batch, loop = self.batch, self.loop
        changed = loop.program.changed_states() if chunk.first else ()
        left = {k: kept[f"S{k}"][chunk.found] for k in changed}
        self.rows = rows = ScanRows(batch, loop, chunk, self._xs, left)
        for b in loop.storage.packed:
            if batch.recompute:
                rows.add_matrix(b.name, scratch, rows.tokens, b.width)
            else:
                rows.matrices[b.name] = matrix_of(kept[b.name])
        for b in loop.storage.temporary:
            rows.add_matrix(b.name, scratch, rows.sentences.size, b.width)
        rows.start(scratch, kept, gathers, fills)
        if fills:
            rooms = [kept[f"M{k}"] for k in range(len(self.memory_rooms(batch)))]
            self._memories = rows.sorted_memories(gathers, rooms) if rooms else []
        works.then(gathers)
        rows.maps_ahead(rows.tokens, works)
        count = rows.sentences.size
        self._generic = DeviceGenericSteps(rows, batch, self._memories, count, keeps)
        works.then(ScanSteps(self.cell, rows, self._generic, 0))

    def _outputs(self, y: Ragged, kept: dict[str, Array], following: Shard | None) -> RowGathers:
        rows, column, gathers = self.rows, 0, RowGathers(self.queue, self.batch.dtype)
        out, shard = matrix_of(y.values), self.rows.shard
        for value in self.loop.program.exports:
            columns = out.part(0, column, value.width)
            gathers.put(rows.whole(value), shard.order, columns)
            column += value.width
        index, last = -1 - np.arange(rows.sentences.size), shard.last()
        index[rows.sentences[: last.size]] = last
        for k, value in enumerate(self.loop.program.following):
            init, port = rows.inits[k], matrix_of(self.batch.ports[k].values)
            other = None if init is None else matrix_of(init.values)
            if value is self.loop.program.states[k]:  # no step changes it
                gathers.pick(port, -1 - np.arange(index.size), port, port if shard.first else other)
                continue
            gathers.pick(rows.whole(value), index, port, port if shard.first else other)
            if following is not None:
                between = matrix_of(kept[f"S{k}"][following.found])
                gathers.pick(rows.whole(value), last[: following.running], between)
        return gathers

    # Backward -------------------------------------------------------------------------------------

    def backward(self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]) -> Works:
        """Write every step back down; then weights, streams, initial states and memories.

        Chunks go one after the other, the last first.
        """
        works = Works()
        self._xs = tuple([batch.input(k) for k in range(len(batch.inputs))])
        scratch, gathers = Scratch(batch.scratch), RowGathers(self.queue, batch.dtype)
        carried = self._carried(scratch, gathers)
        gradients, sink = batch.parameter_gradients(), ShardGradients()
        into = GradientRows(gradients, len(self.chunks) > 1)
        memory_gradients: list[Ragged] = []
        rooms = [scratch.take(*room) for room in self.memory_rooms(batch)]
        for chunk in reversed(self.chunks):
            rest = scratch.rest()
            if batch.recompute:
                self._write_forward(works, chunk, rest, batch.saved, gathers, True, False)
                gathers = RowGathers(self.queue, batch.dtype)
            else:
                self.rows.read(self._xs)
                self.rows.start(rest, batch.saved, gathers, False)
            rows, generic = self.rows, self._generic
            rows.matrices |= carried
            self._start_backward(rest, gathers, dy, dxs)
            scan_gradients = ScanGradients(rows, rest, gathers)
            if generic and not memory_gradients:
                memory_gradients = rows.sorted_memories(gathers, rooms, zeros=True)
            works.then(gathers)
            generic.begin_backward(memory_gradients, sink)
            works.then(ScanSteps(self.cell, rows, generic, 1))
            works.call(generic.finish)
            if not chunk.first:
                works.call(partial(sink.pass_on, gradients))
            scan_gradients.parameters(into, works)
            into.next_portion()
            works.then(scan_gradients.inputs(dxs, memory_gradients, works))
            gathers = RowGathers(self.queue, batch.dtype)
            if len(chunk.steps) % 2:  # what its first step left lies in the other array
                for one, other in self.loop.carried:
                    carried[one], carried[other] = carried[other], carried[one]
        works.at_last(batch.saved.clear)  # gradients have taken its place: no second backward
        return works

    def _carried(self, scratch: Scratch, gathers: RowGathers) -> dict[str, DeviceMatrix]:
        """The arrays for gradients of the state, which begin as those of the last states."""
        sentences, carried = self.chunks[0].sentences, {}
        for names, state in zip(self.loop.carried, self.loop.program.states, strict=True):
            gradient = matrix_of(self.batch.port_gradients[state.number].values)
            for name in names:
                carried[name] = matrix_of(scratch.take(sentences.size, state.width))
                gathers.pick(gradient, sentences, carried[name])
        return carried

    def _start_backward(
        self, scratch: Scratch, gathers: RowGathers, dy: Ragged, dxs: tuple[Ragged | None, ...]
    ) -> None:
        rows, loop = self.rows, self.loop
        packed = rows.add_matrix("dY", scratch, rows.tokens, loop.width)
        gathers.pick(matrix_of(dy.values), rows.shard.order, packed)
        reached = self.batch.first.cell.reached
        for k, value in enumerate(loop.program.streams):
            rows.matrices[f"dX{k}"] = None
            if k in loop.read_again or (dxs[k] is not None and k in reached):
                rows.add_matrix(f"dX{k}", scratch, rows.tokens, value.width)
        for b in [*loop.gradients.packed, *loop.gradients.temporary]:
            count = rows.tokens if b.packed else rows.sentences.size
            rows.add_matrix(b.name, scratch, count, b.width)


def chunks_of(batch: Batch) -> tuple[Extent, ...]:
    """The chunks of steps that a pass runs one after the other."""
    return extents(batch.array("length", np.int64), batch.recompute)
