"""`RegionNode`: the node that carries out a region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.cells.region import Group, Region
from dynbatch.cells.region_run import RegionRun
from dynbatch.cells.table import CallTable
from dynbatch.nodes.base import Node, Retain, Shape, intern_signature
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class RegionNode(Node):
    """The calls of a region. Value: group after group, the outputs of each call side by side.

    Batches with:  nothing: it is a batch itself, or as many as its calls need.
    """

    __slots__ = ("places", "region")
    retains = Retain(inputs=True)
    joins_sentences = True
    region: Region
    places: dict[int, Group]

    def __init__(self, *inputs: Node, graph: Any, region: Region) -> None:
        self.places = {id(group.table): group for group in region.groups}
        super().__init__(*inputs, graph=graph, region=region)
        graph.absorb(self)  # its calls are run, by another region if this run fails

    def infer_shape(self, *shapes: Shape) -> Shape:
        return (self.region.size,)

    def signature(self) -> int:
        kinds = tuple([group.cell.uid for group in self.region.groups])
        return intern_signature(RegionNode, (RegionNode, kinds, self.region.number))

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["cells", "phase"]

    @classmethod
    def sources(cls, nodes: Sequence[Node]) -> list[list[Any]]:
        (node,) = nodes
        assert isinstance(node, RegionNode)
        return list(node.region.sources)

    def all_parameters(self) -> tuple[Parameter, ...]:
        found = {p.uid: p for g in self.region.groups for p in g.cell.all_parameters()}
        return tuple(found.values())

    def place(self, table: CallTable, row: int, leaf: int) -> int:
        """First element of a call's value number `leaf`."""
        group = self.places[id(table)]
        cell = group.cell
        return group.offset + int(table.position[row]) * cell.width + cell.columns[leaf]

    def label(self) -> str:
        names = dict.fromkeys([group.table.cell.__name__ for group in self.region.groups])
        return f"calls of {', '.join(names)}"

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        region: Region = batch.first.region
        return {
            f"{number}:{buffer.name}": (group.count, buffer.width)
            for number, group in enumerate(region.groups)
            for buffer in group.cell.storage.packed
        }

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return RegionRun.elements(batch.first.region, backward=False, keeps=batch.keeps)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return RegionRun.elements(batch.first.region, backward=True, keeps=True)

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        run = RegionRun(batch, batch.first.region)
        batch.memo["run"] = run
        run.forward(y.flat, xs)

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        run: RegionRun = batch.memo["run"]
        run.backward(dy.flat, dxs)
