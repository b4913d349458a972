"""`DeviceScanRun`: one batch of scans on a GPU, forward and back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dynbatch.cells.cuda.gathers import RowGathers
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import wide_rooms
from dynbatch.cells.cuda.matrices import matrix_of
from dynbatch.cells.scan.cuda.parameter_gradients import ScanGradients
from dynbatch.cells.scan.cuda.rows import ScanRows
from dynbatch.cells.scan.cuda.steps import ScanSteps
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.cuda.cell import DeviceCell
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.kernels.cuda.runtime.joined import Joinable
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceScanRun:
    """One batch of scans: forward, and later backward."""

    def __init__(self, batch: Batch, y: Ragged, xs: tuple[Ragged, ...]) -> None:
        self.batch = batch
        self.cell: DeviceCell = batch.first.cell.on_device
        self.loop = self.cell.loop
        self.rows = ScanRows(batch, self.loop, y, xs)
        self.rows.queue.kernels(batch.dtype).add(self.cell.source)

    @staticmethod
    def saved(batch: Batch) -> dict[str, tuple[int, int]]:
        """The values that forward leaves: all packed ones, and weights that it gathered."""
        rows, loop = sum([node.length for node in batch.nodes]), batch.first.cell.on_device.loop
        return {b.name: (rows, b.width) for b in loop.storage.packed} | wide_rooms(loop)

    @staticmethod
    def elements(batch: Batch, backward: bool) -> int:
        """Scratch elements that one pass needs."""
        loop: Loop = batch.first.cell.on_device.loop
        program = loop.program
        tokens: int = sum([node.length for node in batch.nodes])
        sentences = len(batch.nodes)
        states = sum([v.width for v in program.states])
        streams = sum([v.width for v in program.streams])
        total: int = tokens * streams + sentences * states
        if not backward:
            total += sentences * sum([b.width for b in loop.storage.temporary])
            kept = DeviceScanRun.saved(batch).values()
            return total + (0 if batch.keeps else sum([rows * width for rows, width in kept]))
        per_token = sum([b.width for b in loop.gradients.packed]) + streams + loop.width
        per_token += sum([state.width for state in loop.found])
        per_sentence = sum([b.width for b in loop.gradients.temporary]) + 2 * states
        return total + tokens * per_token + sentences * per_sentence

    # Forward --------------------------------------------------------------------------------------

    def forward(self, y: Ragged) -> Iterator[Joinable]:
        """Run every step, then bring outputs and last states into sentence order.

        Yields:
            what may be joined with the work of other batches.
        """
        batch, rows, loop = self.batch, self.rows, self.loop
        scratch = Scratch(batch.scratch)
        kept = batch.saved
        if not batch.keeps:
            kept = {name: scratch.take(*size) for name, size in self.saved(batch).items()}
        for b in loop.storage.packed:
            rows.matrices[b.name] = matrix_of(kept[b.name])
        for b in loop.storage.temporary:
            rows.add_matrix(b.name, scratch, rows.sentences.size, b.width)
        gathers = RowGathers(rows.queue, batch.dtype)
        rows.start(scratch, kept, gathers)
        memories = rows.sorted_memories(gathers) if loop.program.generic else []
        yield gathers
        yield from rows.maps_ahead(rows.tokens)
        self._generic = DeviceGenericSteps(rows, batch, memories, rows.sentences.size)
        yield ScanSteps(self.cell, rows, self._generic, 0)
        yield self._outputs(y)

    def _outputs(self, y: Ragged) -> RowGathers:
        rows, column, gathers = self.rows, 0, RowGathers(self.rows.queue, self.batch.dtype)
        out = matrix_of(y.values)
        for value in self.loop.program.exports:
            gathers.pick(rows.whole(value), rows.inverse, out.part(0, column, value.width))
            column += value.width
        index, last = -1 - np.arange(rows.sentences.size), rows.shard.last()
        index[rows.sentences[: last.size]] = last
        for k, value in enumerate(self.loop.program.following):
            init = rows.inits[k]
            other = None if init is None else matrix_of(init.values)
            gathers.pick(rows.whole(value), index, matrix_of(self.batch.ports[k].values), other)
        return gathers

    # Backward -------------------------------------------------------------------------------------

    def backward(
        self, batch: Batch, dy: Ragged, dxs: tuple[Ragged | None, ...]
    ) -> Iterator[Joinable]:
        """Run every step backwards; then weights, streams, initial states and memories.

        Yields:
            what may be joined with the work of other batches.
        """
        rows = self.rows
        rows.read(tuple([batch.input(k) for k in range(len(batch.inputs))]))
        scratch = Scratch(batch.scratch)
        gathers = RowGathers(rows.queue, batch.dtype)
        rows.start(scratch, batch.saved, gathers)
        self._start_backward(scratch, gathers, dy, dxs)
        scan_gradients = ScanGradients(rows, scratch, gathers)
        sink = ShardGradients()
        memory_gradients = rows.sorted_memories(gathers, zeros=True) if self._generic else []
        yield gathers
        self._generic.begin_backward(memory_gradients, sink)
        yield ScanSteps(self.cell, rows, self._generic, 1)
        self._generic.finish()
        gradients = batch.parameter_gradients()
        sink.pass_on(gradients)
        yield from scan_gradients.parameters(gradients)
        yield scan_gradients.inputs(dxs, memory_gradients)
        batch.saved.clear()  # gradients have taken its place: no second backward

    def _start_backward(
        self, scratch: Scratch, gathers: RowGathers, dy: Ragged, dxs: tuple[Ragged | None, ...]
    ) -> None:
        rows, loop = self.rows, self.loop
        packed = rows.add_matrix("dY", scratch, rows.tokens, loop.width)
        gathers.pick(matrix_of(dy.values), rows.shard.order, packed)
        for names, state in zip(loop.carried, loop.program.states, strict=True):
            given = matrix_of(self.batch.port_gradients[state.number].values)
            for name in names:
                carried = rows.add_matrix(name, scratch, rows.sentences.size, state.width)
                gathers.pick(given, rows.sentences, carried)
        reached = self.batch.first.cell.reached
        for k, value in enumerate(loop.program.streams):
            rows.matrices[f"dX{k}"] = None
            if k in loop.read_again or (dxs[k] is not None and k in reached):
                rows.add_matrix(f"dX{k}", scratch, rows.tokens, value.width)
        for b in [*loop.gradients.packed, *loop.gradients.temporary]:
            count = rows.tokens if b.packed else rows.sentences.size
            rows.add_matrix(b.name, scratch, count, b.width)
