"""`RegionRun`: one region of calls, batch by batch forward and back; `HostRegionRun` on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.group_run import GroupRun, HostGroupRun
from dynbatch.cells.calls.region import CallRegion, Inner
from dynbatch.compiler.arrays import Scratch
from dynbatch.kernels.batches import BatchPass
from dynbatch.kernels.gathers import BoundTable, GatherTable, gather
from dynbatch.kernels.runtime.tasks import Tasks
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

W = TypeVar("W")
"""The form in which work is written down: `Tasks`, or `Works` on a GPU."""


class RegionRun(Generic[W]):
    """One region: its groups, from forward to backward."""

    group_run: type[GroupRun]
    work: type[W]

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        self.batch = batch
        self.region = region
        self.groups: Sequence[Any] = [
            self.group_run(region, number, batch) for number in range(len(region.groups))
        ]

    def forward(self, y: Array, xs: Sequence[Ragged]) -> W:
        """Gather known values, run batch after batch, then write the outputs side by side."""
        scratch, work = Scratch(self.batch.scratch), self.work()
        for group in self.groups:
            group.begin(scratch, work, y, xs)
        spaces = [*self._spaces(xs)]
        self._gather(work, [each for g in self.groups for each in g.gathers(spaces, ahead=True)])
        for group in self.groups:
            group.maps_ahead(work)
            group.bind(0, group.gathers(spaces, ahead=False))
        self._run(work, 0)
        self._gather(work, [each for group in self.groups for each in group.outputs(y)])
        return work

    def backward(self, dy: Array, dxs: Sequence[Ragged | None]) -> W:
        """Run the batches in reverse; then the gradients of weights and outside values."""
        xs = [self.batch.input(k) for k in range(len(self.batch.inputs))]
        scratch, work = Scratch(self.batch.scratch), self.work()
        for group in self.groups:
            group.begin_backward(scratch, work, dy, xs, dxs)
        outside = self._bind_backward(work, [*self._spaces(xs)], dy, dxs)
        self._run(work, 1)
        for group in self.groups:
            group.finish(work)
        self._gather(work, outside)
        return work

    def _spaces(self, xs: Sequence[Ragged]) -> Iterator[Array]:
        """The arrays behind the region's spaces."""
        for space in self.region.spaces:
            if isinstance(space, Inner):
                yield self.groups[space.group].export(space.leaf)
            else:
                yield space.of(xs[space.source])

    def _gather(self, work: W, tables: Sequence[BoundTable]) -> None:
        """Write down sums of rows, which do not read each other."""
        raise NotImplementedError

    def _bind_backward(
        self, work: W, spaces: Sequence[Array], dy: Array, dxs: Sequence[Ragged | None]
    ) -> Sequence[BoundTable]:
        """Gather again what is known by now; tell groups what they read and give back.

        Returns:
            sums that are made at last.
        """
        raise NotImplementedError

    def _run(self, work: W, way: int) -> None:
        """Write down all batches, in reverse for backward (1)."""
        raise NotImplementedError


class HostRegionRun(RegionRun[Tasks]):
    """One region on the CPU, where backward gives each row back to those it was gathered from."""

    group_run = HostGroupRun
    work = Tasks
    groups: Sequence[HostGroupRun]

    def _gather(self, work: Tasks, tables: Sequence[BoundTable]) -> None:
        work.call(*[
            partial(gather, sources, table or GatherTable(np.arange(len(out))), 0, len(out), out)
            for out, table, sources, _ in tables
        ])  # fmt: skip
        self.batch.launches += len(tables)

    def _bind_backward(
        self, work: Tasks, spaces: Sequence[Array], dy: Array, dxs: Sequence[Ragged | None]
    ) -> Sequence[BoundTable]:
        written = {source for group in self.groups for source in group.written.values()}
        for source, dx in enumerate(dxs):
            if dx is not None and source not in written:
                dx.values[...] = 0
        gradients = [*self._gradients(dy, dxs)]
        for group in self.groups:
            group.bind(1, group.gathers(spaces, ahead=False), gradients)
        self._gather(work, [each for g in self.groups for each in g.gathers(spaces, ahead=True)])
        return []

    def _gradients(self, dy: Array, dxs: Sequence[Ragged | None]) -> Iterator[Array | None]:
        """The gradients' arrays behind the region's spaces; None for unwanted ones."""
        for space in self.region.spaces:
            if isinstance(space, Inner):
                yield self.region.groups[space.group].results.values(dy, space.leaf)
                continue
            dx = dxs[space.source]
            yield None if dx is None else space.of(dx)

    def _run(self, work: Tasks, way: int) -> None:
        """Write down all batches; in C consecutive ones are one task."""
        groups, batches = self.groups, [*enumerate(self.region.batches)]
        in_c = BatchPass([g.in_c(way) if g.is_in_c else None for g in groups])
        ordered = batches[::-1] if way else batches
        for is_in_c, some in groupby(ordered, lambda each: groups[each[1].group].is_in_c):
            if is_in_c:
                of_threads = in_c.tasks([batch for _, batch in some], self.batch.dtype)
                work.then(*[[task] for task in of_threads])
                continue
            for t, (number, first, end) in some:
                work.then([partial(groups[number].batch, t, first, end)])
        for batch in self.region.batches:
            self.batch.launches += groups[batch.group].launches(way)
