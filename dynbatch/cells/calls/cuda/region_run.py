"""`DeviceRegionRun`: one region of calls on a GPU, where backward gathers as forward does.

No row is written by two launches at a time, nor by two threads: forward gathers what calls are
given, and backward gathers the gradient of what each call returned from those of its readers, by
the tables of forward read the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.cuda.group_run import DeviceGroupRun
from dynbatch.cells.calls.region import CallRegion, Inner, PackedRows
from dynbatch.cells.calls.region_run import RegionRun
from dynbatch.kernels import arrays
from dynbatch.kernels.gathers import BoundTable, GatherTable, readers_table
from dynbatch.kernels.runtime.device_loops import SumLaunches, Works, queue
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

Readers = tuple[list[tuple[GatherTable, int]], list[Array]]
"""The tables that read an array, with its number in each, and the gradients of their rows."""


class DeviceRegionRun(RegionRun[Works]):
    """One region on a GPU."""

    group_run = DeviceGroupRun
    work = Works
    groups: Sequence[DeviceGroupRun]

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        super().__init__(batch, region)
        self._tables: dict[tuple[int, ...], GatherTable] = {}

    def _gather(self, work: Works, tables: Sequence[BoundTable]) -> None:
        work.call(SumLaunches(queue(), self.batch.dtype, tables).launch)

    def _bind_backward(
        self, work: Works, spaces: Sequence[Array], dy: Array, dxs: Sequence[Ragged | None]
    ) -> Sequence[BoundTable]:
        outside, groups = [*self._outside(dxs, work)], self.groups
        both = (True, False)
        self._gather(work, [x for g in groups for ahead in both for x in g.gathers(spaces, ahead)])
        for number, group in enumerate(groups):
            group.bind(1, [*self._inside(number, dy)])
        return outside

    def _run(self, work: Works, way: int) -> None:
        """Write down all batches; those of one group that follow each other are one item."""
        is_apart = any([group.flushes for group in self.groups])
        order = range(len(self.region.batches))[:: -1 if way else 1]
        for number, some in groupby(order, lambda t: self.region.batches[t].group):
            work.call(partial(self.groups[number].steps.run, np.array([*some]), is_apart))

    # Gradients from readers -----------------------------------------------------------------------

    def _readers(self, number: int) -> Readers:
        tables, gradients = [], []
        for group in self.groups:
            for k in sorted(group.cell.reached):
                stream = group.group.streams[k]
                if number in stream.spaces:
                    tables.append((stream.table, stream.spaces.index(number)))
                    gradients.append(group.arrays[f"dX{k}"])
        return tables, gradients

    def _table(self, rows: int, tables: Sequence[tuple[GatherTable, int]]) -> GatherTable:
        """The table of readers; parts of one argument share theirs."""
        key = rows, *[x for table, number in tables for x in (id(table), number)]
        if key not in self._tables:
            self._tables[key] = readers_table(rows, tables)
        return self._tables[key]

    def _inside(self, number: int, dy: Array) -> Iterator[BoundTable]:
        group = self.groups[number].group
        for k, space in enumerate(self.region.spaces):
            if isinstance(space, Inner) and space.group == number:
                tables, gradients = self._readers(k)
                if tables:
                    out, table = (
                        group.results.values(dy, space.leaf),
                        self._table(group.calls, tables),
                    )
                    yield BoundTable(out, table, gradients, adds=True)

    def _outside(self, dxs: Sequence[Ragged | None], work: Works) -> Iterator[BoundTable]:
        """Sums that make the gradients of what the region read; what they add to is filled."""
        region = self.region
        filled = {source for group in region.groups for source in group.memories}
        sums: dict[int, list[BoundTable]] = {k: [] for k in range(len(dxs))}
        for number, space in enumerate(region.spaces):
            dx = None if isinstance(space, Inner) else dxs[space.source]
            if dx is None or isinstance(space, Inner):
                continue
            tables, gradients = self._readers(number)
            if not isinstance(space, PackedRows) or not tables:
                filled.add(space.source)
            if tables:
                out = space.of(dx)
                table = self._table(len(out), tables)
                sums[space.source].append(BoundTable(out, table, gradients))
        for source, dx in enumerate(dxs):
            adds = source in filled or len(sums[source]) != 1
            if dx is not None and adds:
                work.call(partial(arrays.fill, dx.values, 0))
            yield from [each._replace(adds=adds) for each in sums[source]]
