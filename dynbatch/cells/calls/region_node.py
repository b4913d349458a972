"""`RegionNode`: the node that carries out a region."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dynbatch.cells.calls.cuda.region_run import DeviceRegionRun
from dynbatch.cells.calls.group_run import rooms_of, saved_of
from dynbatch.cells.calls.region import CallGroup, CallRegion
from dynbatch.cells.calls.region_run import HostRegionRun
from dynbatch.cells.calls.table import CallRun, ValueHandle
from dynbatch.cells.flops import backward_flops, forward_flops
from dynbatch.compiler.arrays import elements_of
from dynbatch.kernels.runtime.tasks import Written
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
                yield group.table.call(row), number

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
        region = batch.first.region
        groups = range(len(region.groups))
        return {f"{k}:{x}": room for k in groups for x, room in saved_of(region, k, batch).items()}

    @classmethod
    def narrow_saved(cls, batch: Batch) -> Collection[str]:
        cells = enumerate([group.cell for group in batch.first.region.groups])
        is_cuda = batch.device.is_cuda
        return [f"{k}:{name}" for k, cell in cells for name in cell.values_left(is_cuda)]

    @classmethod
    def operations(cls, batch: Batch) -> int:
        groups = batch.first.region.groups
        return sum([g.calls * sum([p.size for p in g.cell.parameters]) for g in groups])

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        return cls._sum_of_groups(sizes.batch, forward_flops)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """A call's arguments all get a gradient: most are what other calls returned."""
        return cls._sum_of_groups(sizes.batch, backward_flops)

    @classmethod
    def _sum_of_groups(cls, batch: Batch, flops_of: Callable[..., Flops]) -> Flops:
        groups: list[CallGroup] = batch.first.region.groups
        each = [flops_of(g.cell, g.calls, cls._rows_read(batch, g), batch.dtype) for g in groups]
        return reduce(Flops.plus, each, NO_FLOPS)

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
        groups = range(len(region.groups))
        return sum([elements_of(rooms_of(region, k, batch, backward)) for k in groups])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> Written:
        run = _runner(batch)(batch, batch.first.region)
        batch.memo["run"] = run
        return run.forward(y.flat, xs)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> Written:
        run: HostRegionRun | DeviceRegionRun = batch.memo["run"]
        return run.backward(dy.flat, dxs)


def _runner(batch: Batch) -> type[HostRegionRun] | type[DeviceRegionRun]:
    return DeviceRegionRun if batch.device.is_cuda else HostRegionRun
