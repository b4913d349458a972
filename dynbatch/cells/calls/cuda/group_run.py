"""`DeviceGroupRun`: the loop of one group of a region's calls on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.cuda.steps import CallSteps
from dynbatch.cells.calls.group_run import GroupRun
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.cuda.generic import DeviceGenericSteps
from dynbatch.cells.cuda.linear_maps import wide_rooms, write_products
from dynbatch.cells.cuda.parameter_gradients import add_gradients
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.cells.loop_arrays import loop_rooms
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Rooms, Scratch
from dynbatch.kernels.gathers import BoundTable
from dynbatch.kernels.runtime.device_loops import (
    RowGathers,
    SumLaunches,
    Works,
)
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged


class DeviceGroupRun(GroupRun):
    """The loop of one group on a GPU.

    Attributes:
        rows: where its values lie; a step is a batch of the region, by its number there.
    """

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        super().__init__(region, number, batch)
        self._device = self.cell.on_device
        self._loop = self._device.loop
        steps = [(first, end, end - first, -1) for _, first, end in region.batches]
        self.rows = LoopRows(self._loop, batch.dtype, steps)
        self.rows.queue.kernels(batch.dtype).add(self._device.source)

    @staticmethod
    def saved(region: CallRegion, number: int) -> Rooms:
        """The values that forward leaves: all packed ones, and weights that it gathered."""
        group = region.groups[number]
        loop = group.cell.on_device.loop
        return {b.name: (group.calls, b.width) for b in loop.storage.packed} | wide_rooms(loop)

    @staticmethod
    def rooms(region: CallRegion, number: int, batch: Batch, backward: bool) -> Rooms:
        """The arrays of a pass."""
        group, keeps = region.groups[number], batch.keeps or backward
        rooms = loop_rooms(
            group.cell, group.cell.on_device.loop, group.calls, region.most(number), batch.dtype,
            keeps, backward, elsewhere=["dY"],
        )  # fmt: skip
        return rooms if keeps else rooms | DeviceGroupRun.saved(region, number)

    def begin(self, scratch: Scratch, work: Works, y: Array, xs: Sequence[Ragged]) -> None:
        """Set the arrays of forward."""
        batch, gathers = self._batch, work.last
        if not isinstance(gathers, RowGathers):
            gathers = RowGathers(self.rows.queue, batch.dtype)
            work.then(gathers)
        self.rows.add_weights(self._take(scratch, backward=False), gathers)
        memories = [xs[source] for source in self.group.memories]
        chosen = self._region.chosen_memories(self._number) if memories else {}
        self._generic = DeviceGenericSteps(
            self.rows, batch, memories, self._most, batch.keeps, chosen
        )

    def begin_backward(
        self, scratch: Scratch, work: Works, dy: Array, xs: Sequence[Ragged],
        dxs: Sequence[Ragged | None],
    ) -> None:  # fmt: skip
        """Set the arrays of backward, and where generic operators' gradients go."""
        rows = self.rows
        kept, self.results = self._take(scratch, backward=True), self.group.results.of(dy)
        rows.add({"dY": self.results})
        rows.add_weights(kept, None)
        self._sink = ShardGradients()
        sources = self.group.memories
        self._generic.begin_backward(
            [dxs[source] for source in sources], self._sink, [xs[source] for source in sources]
        )

    def _take(self, scratch: Scratch, backward: bool) -> dict[str, Array]:
        """Take the arrays of a pass, and give those that forward leaves for backward."""
        arrays = scratch.take_all(self.rooms(self._region, self._number, self._batch, backward))
        names = self.saved(self._region, self._number)
        saved = self._batch.saved
        kept = {
            name: arrays[name] if name in arrays else saved[f"{self._number}:{name}"]
            for name in names
        }
        self.arrays = arrays | {b.name: kept[b.name] for b in self._loop.storage.packed}
        self.rows.add(self.arrays)
        return kept

    def maps_ahead(self, work: Works) -> None:
        """Write down the maps of what is known before the first batch."""
        self.rows.maps_ahead(work)

    def export(self, leaf: int) -> Array:
        return self.rows.whole(self._loop.program.exports[leaf])

    def bind(self, way: int, sums: Sequence[BoundTable]) -> None:
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
        add_gradients(self.cell, self.rows, weights, works)
