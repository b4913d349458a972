"""`RegionNode`: the node that carries out a region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynbatch.cells.calls.group_run import elements
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.calls.region_run import RegionRun
from dynbatch.cells.calls.table import CallRun, ValueHandle
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class RegionNode(Operation):
    """The calls of a region. Value: group after group, the outputs of each call side by side.

    It is made for one run and does not belong to the graph; if the run fails, another is made.

    Batches with:  nothing: it is a batch itself, or as many as its calls need.
    """

    __slots__ = ("region",)
    retains = Retain(inputs=True)
    joins_sentences = True
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
        """The places of each group's results after the run."""
        return [CallRun(self, g.offset, g.count, g.cell) for g in self.region.groups]

    def settle(self) -> None:
        """Enter in the calls' tables that this node runs them."""
        for group, run in zip(self.region.groups, self.call_runs(), strict=True):
            group.table.settle(group.rows, run)

    def calls(self) -> Iterator[tuple[ValueHandle, int]]:
        """The calls in the order in which they run, with batch numbers from 0."""
        for number, step in enumerate(self.region.batches):
            group = self.region.groups[step.group]
            for row in group.rows[step.first : step.end].tolist():
                yield group.table.calls[row], number

    def batch_sizes(self) -> list[tuple[str, int]]:
        """The cell and the number of calls of each batch, in order."""
        region = self.region
        names = [group.table.cell.__name__ for group in region.groups]
        return [(names[step.group], step.end - step.first) for step in region.batches]

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        region: CallRegion = batch.first.region
        return {
            f"{number}:{buffer.name}": (group.count, buffer.width)
            for number, group in enumerate(region.groups)
            for buffer in group.cell.storage.packed
        }

    @classmethod
    def operations(cls, batch: Batch) -> int:
        groups = batch.first.region.groups
        return sum([g.count * sum([p.size for p in g.cell.parameters]) for g in groups])

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        region: CallRegion = batch.first.region
        tables = [table for g in region.groups for stream in g.streams for table in stream.table]
        tables += [group.rows for group in region.groups]
        return sum({id(table): table.nbytes for table in tables if table is not None}.values())

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return elements(batch.first.region, False, batch.keeps, batch.dtype)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return elements(batch.first.region, True, True, batch.dtype)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        run = RegionRun(batch, batch.first.region)
        batch.memo["run"] = run
        run.forward(y.flat, xs)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        run: RegionRun = batch.memo["run"]
        run.backward(dy.flat, dxs)
