"""`RegionRun`: runs the calls of one region, batch by batch, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from dynbatch.cells.calls.group_run import GroupRun
from dynbatch.cells.calls.region import CallRegion, Inner
from dynbatch.compiler.arrays import Scratch, columns_of
from dynbatch.kernels.c.gathers import BatchPass
from dynbatch.kernels.c.runtime.tasks import Tasks
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class RegionRun:
    """One region: its groups, from forward to backward.

    What runs in C is written down as tasks, a whole pass if there is nothing else.
    """

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        self.batch = batch
        self.region = region
        self.groups = [GroupRun(region, number, batch) for number in range(len(region.groups))]

    def forward(self, y: Array, xs: Sequence[Ragged]) -> None:
        """Gather known values, run batch after batch, then write the outputs side by side."""
        scratch, tasks = Scratch(self.batch.scratch), Tasks()
        for group in self.groups:
            group.begin(scratch, tasks, xs)
        values = list(self._values(xs))
        for group in self.groups:
            group.bind(values)
            group.ahead(tasks, maps=True)
        self._run(False, tasks)
        for group in self.groups:
            group.write_outputs(y, tasks)
        tasks.run()

    def backward(self, dy: Array, dxs: Sequence[Ragged | None]) -> None:
        """Run the batches in reverse; then the gradients of weights and outside values."""
        xs = [self.batch.input(k) for k in range(len(self.batch.inputs))]
        for dx in dxs:
            if dx is not None:
                dx.values[...] = 0
        scratch, tasks = Scratch(self.batch.scratch), Tasks()
        for group in self.groups:
            group.begin_backward(scratch, tasks, dy, xs, dxs)
        values, gradients = list(self._values(xs)), list(self._gradients(dy, dxs))
        for group in self.groups:
            group.bind(values, gradients)
            group.ahead(tasks, maps=False)
        self._run(True, tasks)
        weights = [group.finish(tasks) for group in self.groups]
        tasks.run()
        for each in weights:
            each.finish()

    def _run(self, is_backward: bool, tasks: Tasks) -> None:
        """Run all batches, in reverse for backward; in C consecutive ones are one task."""
        groups, batches = self.groups, [*enumerate(self.region.batches)]
        in_c = BatchPass([g.in_c(is_backward) if g.is_in_c else None for g in groups])
        ordered = batches[::-1] if is_backward else batches
        for is_in_c, some in groupby(ordered, lambda each: groups[each[1].group].is_in_c):
            if is_in_c:
                of_threads = in_c.tasks([batch for _, batch in some], self.batch.dtype)
                tasks.then(*[[task] for task in of_threads])
                continue
            for t, (number, first, end) in some:
                tasks.then([partial(groups[number].batch, t, first, end)])
        for batch in self.region.batches:
            self.batch.launches += groups[batch.group].launches(is_backward)

    def _values(self, xs: Sequence[Ragged]) -> Iterator[Array]:
        """The arrays behind the region's spaces."""
        for space in self.region.spaces:
            if isinstance(space, Inner):
                group = self.groups[space.group]
                yield columns_of(group.arrays, group.cell.exports[space.leaf])
            else:
                yield space.of(xs[space.source])

    def _gradients(self, dy: Array, dxs: Sequence[Ragged | None]) -> Iterator[Array | None]:
        """The gradients' arrays behind the region's spaces; None for unwanted ones."""
        for space in self.region.spaces:
            if isinstance(space, Inner):
                group = self.region.groups[space.group]
                column = group.cell.columns[space.leaf]
                width = group.cell.program.exports[space.leaf].width
                yield group.results_in(dy)[:, column : column + width]
                continue
            dx = dxs[space.source]
            yield None if dx is None else space.of(dx)
