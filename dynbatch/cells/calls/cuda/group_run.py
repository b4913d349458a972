"""`DeviceGroupRun`: the loop of one group of a region's calls on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.cuda.steps import CallSteps
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import wide_rooms, write_products
from dynbatch.cells.cuda.parameter_gradients import LoopGradients
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Rooms, Scratch
from dynbatch.kernels.runtime.device_loops import (
    DeviceMatrix,
    Place,
    RowGathers,
    RowSums,
    SumLaunches,
    Works,
    matrix_of,
)
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceGroupRun:
    """The loop of one group.

    Attributes:
        rows:    where its values lie; a step is a batch of the region, by its number there.
        results: in backward, gradients of what the calls returned, (count, width).
    """

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        self.group = region.groups[number]
        self.cell = self.group.cell
        self._device = self.cell.on_device
        self._loop = self._device.loop
        self._region = region
        self._number = number
        self._batch = batch
        steps = [(first, end, end - first, -1) for _, first, end in region.batches]
        self.rows = LoopRows(self._loop, batch.dtype, steps)
        self.rows.queue.kernels(batch.dtype).add(self._device.source)

    @staticmethod
    def saved(region: CallRegion, number: int) -> dict[str, tuple[int, int]]:
        """The values that forward leaves: all packed ones, and weights that it gathered."""
        group = region.groups[number]
        loop = group.cell.on_device.loop
        return {b.name: (group.calls, b.width) for b in loop.storage.packed} | wide_rooms(loop)

    @staticmethod
    def rooms(region: CallRegion, number: int, batch: Batch, backward: bool) -> Rooms:
        """The arrays of a pass."""
        group, most = region.groups[number], region.most(number)
        loop = group.cell.on_device.loop
        streams = {k: (group.calls, x.width) for k, x in enumerate(loop.program.streams)}
        rooms = {f"X{k}": room for k, room in streams.items()}
        if not backward:
            rooms |= {} if batch.keeps else DeviceGroupRun.saved(region, number)
            return rooms | {b.name: (most, b.width) for b in loop.storage.temporary}
        rooms |= {f"dX{k}": streams[k] for k in group.cell.reached}
        rooms |= {b.name: (group.calls, b.width) for b in loop.gradients.packed}
        return rooms | {b.name: (most, b.width) for b in loop.gradients.temporary}

    def begin(self, scratch: Scratch, gathers: RowGathers, xs: Sequence[Ragged]) -> None:
        """Set the arrays of forward.

        Args:
            gathers: bring wide weights together.
        """
        kept = self._take(scratch, backward=False)
        self.rows.add_weights(kept, gathers)
        memories = [xs[source] for source in self.group.memories]
        chosen = self._region.chosen_memories(self._number) if memories else {}
        batch = self._batch
        self._generic = DeviceGenericSteps(
            self.rows, batch, memories, self._most, batch.keeps, chosen
        )

    def begin_backward(
        self, scratch: Scratch, dy: Array, xs: Sequence[Ragged], dxs: Sequence[Ragged | None]
    ) -> None:
        """Set the arrays of backward, and where generic operators' gradients go."""
        rows = self.rows
        kept, self.results = self._take(scratch, backward=True), self.group.results.of(dy)
        rows.matrices["dY"] = matrix_of(self.results)
        rows.add_weights(kept, None)
        self._sink = ShardGradients()
        sources = self.group.memories
        self._generic.begin_backward(
            [dxs[source] for source in sources], self._sink, [xs[source] for source in sources]
        )

    @property
    def _most(self) -> int:
        return self._region.most(self._number)

    def _take(self, scratch: Scratch, backward: bool) -> dict[str, Array]:
        """Take the arrays of a pass, and give those that forward leaves for backward."""
        arrays = scratch.take_all(self.rooms(self._region, self._number, self._batch, backward))
        names = self.saved(self._region, self._number)
        saved = self._batch.saved
        kept = {
            name: arrays[name] if name in arrays else saved[f"{self._number}:{name}"]
            for name in names
        }
        self.rows.add(arrays)
        self.rows.add({b.name: kept[b.name] for b in self._loop.storage.packed})
        return kept

    # Where rows come from and go to ---------------------------------------------------------------

    def export(self, leaf: int) -> Place:
        """The place of value number `leaf` of the calls."""
        return _place(self.rows.whole(self._loop.program.exports[leaf]))

    def result_gradient(self, leaf: int) -> Place:
        """The place of the gradient of value number `leaf` of the calls."""
        rows = self.rows.matrix("dY")
        return _place(rows.part(0, self.cell.columns[leaf], 0))

    def argument_gradient(self, stream: int) -> Place:
        """The place of the gradient of a stream's rows."""
        return _place(self.rows.matrix(f"dX{stream}"))

    def gathers(self, places: Sequence[Place], ahead: bool) -> Iterator[RowSums]:
        """Sums that make the streams which are known ahead, or the others.

        Args:
            places: of the region's spaces.
        """
        for k, (stream, value) in enumerate(
            zip(self.group.streams, self._loop.program.streams, strict=True)
        ):
            if stream.ahead is ahead:
                out, sources = _place(self.rows.matrix(f"X{k}")), [places[s] for s in stream.spaces]
                yield RowSums(out, value.width, self.group.calls, stream.table, sources)

    def outputs(self, y: Array) -> Iterator[RowSums]:
        """Sums of one term that write what the calls returned into the region's value."""
        rows = matrix_of(self.group.results.of(y))
        for leaf, value in enumerate(self._loop.program.exports):
            out = _place(rows.part(0, self.cell.columns[leaf], value.width))
            yield RowSums(out, value.width, self.group.calls, None, [self.export(leaf)])

    def bind(self, way: int, sums: Sequence[RowSums]) -> None:
        """Look up what the batches of forward (0) or backward (1) do.

        Args:
            sums: are made for each batch before it runs.
        """
        numbers = [t for t, batch in enumerate(self._region.batches) if batch.group == self._number]
        batches, each = np.array(numbers), SumLaunches(self.rows.queue, self._batch.dtype, sums)
        batches = batches[::-1] if way else batches
        self._steps = CallSteps(self._device, self.rows, self._generic, way, batches, each)

    @property
    def flushes(self) -> bool:
        """Whether a user's node type in the cell computes with CuPy at once."""
        generic = [op.node for op in self._loop.program.generic]
        return not all([type(node).names_kernels for node in generic])

    def run(self, batches: Array, is_apart: bool) -> None:
        """Queue the next batches of the group, by their numbers in the region.

        Args:
            is_apart: whether the queue may be flushed between the group's batches.
        """
        self._steps.run(batches, is_apart)

    # Around the batches ---------------------------------------------------------------------------

    def finish(self, works: Works) -> None:
        """Write down the gradients of weights, and of what was known ahead."""
        gradients = self._batch.parameter_gradients()
        works.call(self._generic.finish)
        works.call(partial(self._sink.pass_on, gradients))
        write = partial(write_products, self.rows.queue, works, gradients.later)
        weights = WeightGradients(self.cell, gradients, write)
        LoopGradients(self.cell, self.rows, self.group.calls).parameters(weights, works)

    def argument(self, stream: int) -> Array:
        """The rows of a stream."""
        return self.rows.matrix(f"X{stream}").array

    def gradients(self) -> tuple[Array, dict[int, Array]]:
        """Gradients after backward: of the calls' results, side by side (count, width), and
        of what they were given, (count, width of it) by stream.
        """
        reached = [k for k in self.cell.reached if k < self.cell.program.num_given]
        return self.results, {k: self.rows.matrix(f"dX{k}").array for k in reached}


def _place(matrix: DeviceMatrix) -> Place:
    return matrix.address, matrix.stride
