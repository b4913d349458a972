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
from dynbatch.cells.cuda.linear_maps import write_products
from dynbatch.cells.cuda.parameter_gradients import add_gradients
from dynbatch.cells.cuda.rows import LoopRows
from dynbatch.cells.linear_maps import WeightGradients
from dynbatch.cells.shard_gradients import ShardGradients
from dynbatch.compiler.arrays import Scratch
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
        rows:  where its values lie; a step is a batch of the region, by its number there.
        steps: queue the batches of a pass, once it is bound.
    """

    steps: CallSteps

    def __init__(self, region: CallRegion, number: int, batch: Batch) -> None:
        super().__init__(region, number, batch)
        self._device = self.cell.on_device
        self._loop = self._device.loop
        steps = [(first, end, end - first, -1) for _, first, end in region.batches]
        self.rows = LoopRows(self._loop, batch.dtype, steps)
        self.rows.queue.kernels(batch.dtype).add(self._device.source)

    def begin(self, scratch: Scratch, work: Works, y: Array, xs: Sequence[Ragged]) -> None:
        """Set the arrays of forward."""
        batch, gathers = self._batch, work.last
        if not isinstance(gathers, RowGathers):
            gathers = RowGathers(self.rows.queue, batch.dtype)
            work.then(gathers)
        self._add_arrays(scratch, gathers, backward=False)
        self._generic = DeviceGenericSteps(
            self.rows, batch, self._memories(xs), self._most, batch.keeps, self._chosen()
        )

    def begin_backward(
        self, scratch: Scratch, work: Works, dy: Array, xs: Sequence[Ragged],
        dxs: Sequence[Ragged | None],
    ) -> None:  # fmt: skip
        """Set the arrays of backward, and where generic operators' gradients go."""
        self._add_arrays(scratch, None, backward=True)
        self.results, self._sink = self.group.results.of(dy), ShardGradients()
        self.rows.add({"dY": self.results})
        self._generic.begin_backward(self._memories(dxs), self._sink, self._memories(xs))

    def _add_arrays(self, scratch: Scratch, gathers: RowGathers | None, backward: bool) -> None:
        taken, kept = self._take(scratch, backward)
        self.arrays = taken | {b.name: kept[b.name] for b in self._loop.storage.packed}
        self.rows.add(self.arrays)
        self.rows.add_weights(kept, gathers)

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
        self.steps = CallSteps(self._device, self.rows, self._generic, way, batches, each)

    @property
    def flushes(self) -> bool:
        """Whether a user's node type in the cell computes with CuPy at once."""
        generic = [op.node for op in self._loop.program.generic]
        return not all([type(node).names_kernels for node in generic])

    # Around the batches ---------------------------------------------------------------------------

    def finish(self, works: Works) -> None:
        """Write down the gradients of weights, and of what was known ahead."""
        gradients = self._batch.parameter_gradients()
        works.call(self._generic.finish)
        works.call(partial(self._sink.pass_on, gradients))
        write = partial(write_products, self.rows.queue, works, gradients.later)
        weights = WeightGradients(self.cell, gradients, write)
        add_gradients(self.cell, self.rows, weights, works)
