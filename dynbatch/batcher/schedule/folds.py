"""`Folds`: nodes that may be computed without their input, and the conditions.

A loss on logits that come straight from a projection can make them itself, chunk by chunk. Whether
it does is decided anew for each run, when it is planned: only if the logits are neither kept nor
wanted by anybody else in that run. So whoever keeps or reads a node finds its true value, and the
gradient of all its readers.

What is kept only after a reader was computed around it is made good by computing that reader again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from dynbatch.batcher.steps.block import View
from dynbatch.cells.calls.arguments import calls_given
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.table import CallTable
from dynbatch.errors import GraphError
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.node import Node, heading
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.row import Row


class Folds:
    """The folds that a graph may make.

    Attributes:
        readers: indices of nodes that can do without their one input.
        readers_of: these nodes, by the index of that input, which need not run for its own sake.
    """

    def __init__(self) -> None:
        self.readers: set[int] = set()
        self.readers_of: dict[int, list[Node]] = {}

    def add(self, node: Node, reader: Node) -> None:
        """Note that `reader` can be computed without `node`, its one input."""
        self.readers.add(reader.index)
        self.readers_of.setdefault(node.index, []).append(reader)

    def pairs(self) -> list[tuple[int, int]]:
        pairs = [(index, r.index) for index, readers in self.readers_of.items() for r in readers]
        return sorted(pairs)

    def around(self, node: Node, tables: Sequence[CallTable]) -> Iterator[Node]:
        """The readers of a node that were computed without it, from its inputs.

        Or the node itself, if it has no value of its own.

        Those whose sources were freed are left out: for them it is too late.
        """
        if isinstance(node._block, View) and node._block.array is not None:
            yield node
        for reader in self.readers_of.get(node.index, ()):
            if is_folded(reader) and all(map(_is_there, node.inputs)):
                yield reader
        if isinstance(node, Row) and _is_there(node.source):
            for table in tables:
                for call in calls_given(table, node):
                    if call.home is not None:
                        yield call

    def is_lost(self, node: Node) -> bool:
        """Whether a node was folded away and its inputs were freed since."""
        if node.index not in self.readers_of:
            return False
        return any([x._block is not None and x._block.array is None for x in node.inputs])

    def clear(self) -> None:
        self.readers.clear()
        self.readers_of.clear()


def is_folded(node: Node) -> bool:
    """Whether a node was computed without its input."""
    return node._block is not None and isinstance(node._block.nodes[node._position], Folded)


def can_fold(reader: Node, seen: Container[int], kept: Container[int]) -> bool:
    """Whether only `reader` is known to want its input."""
    (x,) = reader.inputs
    return x._block is None and x.index not in seen and x.index not in kept


def fold(readers: Sequence[Node], nodes: dict[int, Node]) -> None:
    """Replace readers whose input is not needed by their folded nodes."""
    for reader in readers:
        if reader.inputs[0].index not in nodes:
            assert isinstance(reader, Operation)
            nodes[reader.index] = reader.folded()


def out_of_date(readers: Sequence[Node], nodes: Sequence[Node]) -> list[Node]:
    """The nodes and calls to run once more: some nodes and all their descendants.

    Args:
        nodes: all of the graph.
    """
    stale = {reader.index for reader in readers}
    again: list[Node] = []
    for node in nodes:
        if node.index not in stale and stale.isdisjoint([x.index for x in node.inputs]):
            continue
        stale.add(node.index)
        if isinstance(node, Call) or (isinstance(node, Operation) and node._block is not None):
            again.append(node)
    return again


def require_own_readers(
    node: Node, totals: Mapping[int, object], tables: Sequence[CallTable]
) -> None:
    """Raise `GraphError` if a node is a part of a total that calls read without making it.

    Args:
        totals: by the nodes that are a part of each.
    """
    total = totals.get(node.index)
    calls = (
        [] if total is None else [call for table in tables for call in calls_given(table, total)]
    )
    if calls:
        raise GraphError.at_caller(
            heading(node, f"{calls[0].label()} was given the total that this node is a part of")
            + "\n  rule: a call gathers the parts of a total, and reads no node; the node's\n"
            "        gradient would lack the call's\n"
            "  fix:  take the parts first and give these: `parts = tuple(db.total(results))`"
        )


def _is_there(node: Node) -> bool:
    return node._block is not None and node._block.array is not None
