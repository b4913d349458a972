"""`DeviceRegionRun`: one region of calls on a GPU, batch by batch forward and back.

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
from dynbatch.compiler.arrays import Scratch
from dynbatch.kernels import arrays
from dynbatch.kernels.gathers import GatherTable, readers_table
from dynbatch.kernels.runtime.device_loops import (
    Place,
    RowGathers,
    RowSums,
    SumLaunches,
    Works,
    place_of,
    queue,
)
from dynbatch.nodes.batch import Batch
from dynbatch.ragged import Ragged

Readers = tuple[list[tuple[GatherTable, int]], list[Place]]
"""The tables that read an array, with its number in each, and the gradients of their rows."""


class DeviceRegionRun:
    """One region: its groups, from forward to backward."""

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        self.batch = batch
        self.region = region
        self.groups = [DeviceGroupRun(region, k, batch) for k in range(len(region.groups))]
        self._tables: dict[tuple[int, ...], GatherTable] = {}

    def forward(self, y: Array, xs: Sequence[Ragged]) -> Works:
        """Gather known values, run batch after batch, then write the outputs side by side."""
        works, gathers = Works(), RowGathers(queue(), self.batch.dtype)
        scratch = Scratch(self.batch.scratch)
        for group in self.groups:
            group.begin(scratch, gathers, xs)
        works.then(gathers)
        places = self._places(xs)
        ahead = [each for group in self.groups for each in group.gathers(places, ahead=True)]
        self._sum(works, ahead)
        for group in self.groups:
            group.rows.maps_ahead(group.group.calls, works)
            group.bind(0, [*group.gathers(places, ahead=False)])
        self._run(works, range(len(self.region.batches)))
        self._sum(works, [each for group in self.groups for each in group.outputs(y)])
        return works

    def backward(self, dy: Array, dxs: Sequence[Ragged | None]) -> Works:
        """Run the batches in reverse; then the gradients of weights and outside values."""
        xs = [self.batch.input(k) for k in range(len(self.batch.inputs))]
        scratch, works = Scratch(self.batch.scratch), Works()
        for group in self.groups:
            group.begin_backward(scratch, dy, xs, dxs)
        outside = [*self._outside(dxs, works)]
        places = self._places(xs)
        self._sum(
            works,
            [
                each
                for group in self.groups
                for ahead in (True, False)
                for each in group.gathers(places, ahead)
            ],
        )
        for number, group in enumerate(self.groups):
            group.bind(1, [*self._inside(number)])
        self._run(works, range(len(self.region.batches))[::-1])
        for group in self.groups:
            group.finish(works)
        self._sum(works, outside)
        return works

    def _run(self, works: Works, order: Sequence[int]) -> None:
        """Run batches, of which those of one group that follow each other are one item."""
        is_apart = any([group.flushes for group in self.groups])
        for number, some in groupby(order, lambda t: self.region.batches[t].group):
            works.call(partial(self.groups[number].run, np.array([*some]), is_apart))

    def _sum(self, works: Works, sums: Sequence[RowSums]) -> None:
        works.call(SumLaunches(queue(), self.batch.dtype, sums).launch)

    def _places(self, xs: Sequence[Ragged]) -> list[Place]:
        return [
            self.groups[space.group].export(space.leaf)
            if isinstance(space, Inner)
            else place_of(space.of(xs[space.source]))
            for space in self.region.spaces
        ]

    # Gradients from readers -----------------------------------------------------------------------

    def _readers(self, number: int) -> Readers:
        tables, places = [], []
        for group in self.groups:
            for k in sorted(group.cell.reached):
                stream = group.group.streams[k]
                if number in stream.spaces:
                    tables.append((stream.table, stream.spaces.index(number)))
                    places.append(group.argument_gradient(k))
        return tables, places

    def _table(self, rows: int, tables: Sequence[tuple[GatherTable, int]]) -> GatherTable:
        """The table of readers; parts of one argument share theirs."""
        key = rows, *[x for table, number in tables for x in (id(table), number)]
        if key not in self._tables:
            self._tables[key] = readers_table(rows, tables)
        return self._tables[key]

    def _inside(self, number: int) -> Iterator[RowSums]:
        group = self.groups[number]
        for k, space in enumerate(self.region.spaces):
            if isinstance(space, Inner) and space.group == number:
                tables, places = self._readers(k)
                if tables:
                    rows, width = group.group.calls, group.cell.program.exports[space.leaf].width
                    out = group.result_gradient(space.leaf)
                    yield RowSums(out, width, rows, self._table(rows, tables), places, adds=True)

    def _outside(self, dxs: Sequence[Ragged | None], works: Works) -> Iterator[RowSums]:
        """Sums that make the gradients of what the region read; what they add to is filled."""
        region = self.region
        filled = {source for group in region.groups for source in group.memories}
        sums: dict[int, list[RowSums]] = {k: [] for k in range(len(dxs))}
        for number, space in enumerate(region.spaces):
            dx = None if isinstance(space, Inner) else dxs[space.source]
            if dx is None or isinstance(space, Inner):
                continue
            tables, places = self._readers(number)
            if not isinstance(space, PackedRows) or not tables:
                filled.add(space.source)
            if tables:
                out = space.of(dx)
                rows, width = out.shape
                table = self._table(rows, tables)
                sums[space.source].append(RowSums(place_of(out), width, rows, table, places))
        for source, dx in enumerate(dxs):
            adds = source in filled or len(sums[source]) != 1
            if dx is not None and adds:
                works.call(partial(arrays.fill, dx.values, 0))
            yield from [each._replace(adds=adds) for each in sums[source]]
