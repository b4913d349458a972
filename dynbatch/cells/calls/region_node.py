"""`RegionNode`: the node that carries out a region, with `RegionRun`, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.cuda.group_run import DeviceGroupRun
from dynbatch.cells.calls.cuda.region_run import DeviceRegionRun
from dynbatch.cells.calls.group_run import GroupRun
from dynbatch.cells.calls.region import CallGroup, CallRegion, Inner
from dynbatch.cells.calls.table import CallRun, ValueHandle
from dynbatch.cells.flops import backward_flops, forward_flops
from dynbatch.compiler.arrays import Scratch, columns_of, elements_of
from dynbatch.kernels.batches import BatchPass
from dynbatch.kernels.runtime.tasks import Tasks, Written
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import NO_FLOPS, BatchSizes, Flops
from dynbatch.nodes.node import ROWS, Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class RegionNode(Operation):
    """The calls of a region. Value: group after group, the outputs of each call side by side.

    It is made for one run and does not belong to the graph; if the run fails, another is made.

    Shape:  what the calls read -> a row of all their outputs.
    Batches with:  nothing: it is a batch itself, or as many as its calls need.
    Kernels:  generated for its cells, in NumPy, C or CUDA: for each batch of calls a gather, the
        products with weights, and one for all the rest.
    """

    __slots__ = ("region",)
    retains = Retain(inputs=True)
    joins_sentences = True
    writes_tasks = True
    region: CallRegion

    def __init__(self, *inputs: Node, graph: Any, region: CallRegion) -> None:
        self.region = region
        self.inputs = inputs
        self.graph = graph
        self.ndim, self.rows, self.width, self.ragged = 1, 1, region.size, ROWS
        self.sig = self.signature()
        self.phase = max([node.phase for node in inputs])
        self._block = None
        self.index = graph.number_of_region()

    def signature(self) -> int:
        groups = self.region.groups
        names = tuple([group.table.cell.__name__ for group in groups])
        cells = tuple([group.cell.uid for group in groups])
        phase = int(groups[0].table.ready[groups[0].rows[0]])
        key = (RegionNode, tuple(dict.fromkeys(names)), phase, cells, self.region.number)
        return intern_signature(key)

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["cells", "phase", "compiled cells", "region"]

    @classmethod
    def sources(cls, nodes: Sequence[RegionNode]) -> list[list[Any]]:
        (node,) = nodes
        return list(node.region.sources)

    def all_parameters(self) -> tuple[Parameter, ...]:
        parameters = {p.uid: p for g in self.region.groups for p in g.cell.parameters}
        return tuple(parameters.values())

    def label(self) -> str:
        names = dict.fromkeys([group.table.cell.__name__ for group in self.region.groups])
        return f"calls of {', '.join(names)}"

    def call_runs(self) -> list[CallRun]:
        return [CallRun(self, group.results) for group in self.region.groups]

    def settle(self) -> None:
        for group, run in zip(self.region.groups, self.call_runs(), strict=True):
            group.table.settle(group.rows, run)

    def calls(self) -> Iterator[tuple[ValueHandle, int]]:
        for number, step in enumerate(self.region.batches):
            group = self.region.groups[step.group]
            for row in group.rows[step.first : step.end].tolist():
                yield group.table.calls[row], number

    def batch_sizes(self) -> list[tuple[str, int]]:
        """The cell and the number of calls of each batch, in order."""
        region = self.region
        names = [group.table.cell.__name__ for group in region.groups]
        return [(names[step.group], step.end - step.first) for step in region.batches]

    def depths(self) -> list[tuple[int, int, int]]:
        return [
            (group.table.graph.tables.index(group.table), int(depth.min()), int(depth.max()))
            for group in self.region.groups
            for depth in [group.table.depth[group.rows]]
        ]

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        """The values that forward leaves for backward."""
        region, run = batch.first.region, _group_run(batch)
        groups = range(len(region.groups))
        return {f"{k}:{x}": room for k in groups for x, room in run.saved(region, k).items()}

    @classmethod
    def operations(cls, batch: Batch) -> int:
        groups = batch.first.region.groups
        return sum([g.calls * sum([p.size for p in g.cell.parameters]) for g in groups])

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        batch, flops = sizes.batch, NO_FLOPS
        for group in batch.first.region.groups:
            memories = cls._rows_read(batch, group)
            flops = flops.plus(forward_flops(group.cell, group.calls, memories, batch.dtype))
        return flops

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """A call's arguments all get a gradient: most are what other calls returned."""
        batch, flops = sizes.batch, NO_FLOPS
        for group in batch.first.region.groups:
            cell, memories = group.cell, cls._rows_read(batch, group)
            a_group = backward_flops(cell, group.calls, memories, batch.dtype, [*cell.reached])
            flops = flops.plus(a_group)
        return flops

    @classmethod
    def _rows_read(cls, batch: Batch, group: CallGroup) -> list[list[int]]:
        sources = cls.sources(batch.nodes) if group.memories else []
        rows = [np.array([node.rows for node in sources[memory]]) for memory in group.memories]
        return [each[group.memory_of].tolist() for each in rows]

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        region: CallRegion = batch.first.region
        tables = [table for g in region.groups for stream in g.streams for table in stream.table]
        tables += [group.rows for group in region.groups]
        return sum({id(table): table.nbytes for table in tables if table is not None}.values())

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return cls._elements(batch, backward=False)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return cls._elements(batch, backward=True)

    @staticmethod
    def _elements(batch: Batch, backward: bool) -> int:
        """Scratch elements of one pass, over all groups."""
        region = batch.first.region
        rooms = _group_run(batch).rooms
        groups = range(len(region.groups))
        return sum([elements_of(rooms(region, k, batch, backward)) for k in groups])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> Written:
        run = _runner(batch)(batch, batch.first.region)
        batch.memo["run"] = run
        return run.forward(y.flat, xs)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> Written:
        run: RegionRun | DeviceRegionRun = batch.memo["run"]
        return run.backward(dy.flat, dxs)


class RegionRun:
    """One region: its groups, from forward to backward.

    A pass is written down as tasks.
    """

    def __init__(self, batch: Batch, region: CallRegion) -> None:
        self.batch = batch
        self.region = region
        self.groups = [GroupRun(region, number, batch) for number in range(len(region.groups))]

    def forward(self, y: Array, xs: Sequence[Ragged]) -> Tasks:
        """Gather known values, run batch after batch, then write the outputs side by side."""
        scratch, tasks = Scratch(self.batch.scratch), Tasks()
        for group in self.groups:
            group.begin(scratch, tasks, y, xs)
        values = list(self._values(xs))
        for group in self.groups:
            group.bind(values)
            group.ahead(tasks, maps=True)
        self._run(False, tasks)
        for group in self.groups:
            group.write_outputs(y, tasks)
        return tasks

    def backward(self, dy: Array, dxs: Sequence[Ragged | None]) -> Tasks:
        """Run the batches in reverse; then the gradients of weights and outside values."""
        xs = [self.batch.input(k) for k in range(len(self.batch.inputs))]
        scratch, tasks = Scratch(self.batch.scratch), Tasks()
        for group in self.groups:
            group.begin_backward(scratch, tasks, dy, xs, dxs)
        written = {source for group in self.groups for source in group.written.values()}
        for source, dx in enumerate(dxs):
            if dx is not None and source not in written:
                dx.values[...] = 0
        values, gradients = list(self._values(xs)), list(self._gradients(dy, dxs))
        for group in self.groups:
            group.bind(values, gradients)
            group.ahead(tasks, maps=False)
        self._run(True, tasks)
        for group in self.groups:
            group.finish(tasks)
        return tasks

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
                yield self.region.groups[space.group].results.values(dy, space.leaf)
                continue
            dx = dxs[space.source]
            yield None if dx is None else space.of(dx)


def _group_run(batch: Batch) -> type[GroupRun] | type[DeviceGroupRun]:
    return DeviceGroupRun if batch.device.is_cuda else GroupRun


def _runner(batch: Batch) -> type[RegionRun] | type[DeviceRegionRun]:
    return DeviceRegionRun if batch.device.is_cuda else RegionRun
