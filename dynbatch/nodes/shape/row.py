"""`Row`: one token of a sentence, made by the thousand."""

from __future__ import annotations

from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.signature import intern_signature
from dynbatch.nodes.syntax.registry import FUNCTIONS


class Row(Slice):
    """One token of a sentence, x[i]; cheap to make, since a loop over the words makes many.

    The row is copied only if it is kept or a node reads it: a call of a cell reads it in place.
    `cells.calls.table` has its further attributes.
    """

    __slots__ = ("form_id", "origin", "ready", "row", "source", "token")
    ndim = 1
    rows = 1
    first = 0
    features = None
    origin: Node
    row: int
    form_id: int
    ready: int
    source: Node
    token: int

    @property
    def graph(self) -> Owner:  # type: ignore[override]
        return self.source.graph

    @property
    def phase(self) -> int:  # type: ignore[override]
        return self.source.phase

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (self.source,)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.source.width

    @property
    def ragged(self) -> int:  # type: ignore[override]
        return self.source.ragged

    def keep(self) -> Node:
        self.origin, self.row = self, 0
        return super().keep()

    @property
    def sig(self) -> int:  # type: ignore[override]
        return SLICE

    @property
    def tokens(self) -> int:  # type: ignore[override]
        return self.token

    @property
    def taken(self) -> tuple[range, range]:  # type: ignore[override]
        return range(self.token, self.token + 1), range(self.source.width)

    def signature(self) -> int:
        return SLICE

    def rebuild(self, *inputs: Node) -> Node:
        return Slice(inputs[0], tokens=self.token, features=None)


SLICE = intern_signature((Slice,))
new_row = Row.__new__


def row_of(x: Node, row: int) -> Node:
    """Row number `row` of a matrix, from 0."""
    graph = x.graph
    if graph.is_trace:
        return Slice(x, tokens=row, features=None)
    node = light_row(x, row)
    node.index = graph.add_light(node)
    return node


def light_row(x: Node, row: int) -> Row:
    """Row number `row`, which has no index yet."""
    node = new_row(Row)
    node.origin = node.source = x
    node.row = node.token = row
    node.form_id = x.graph.form_ids[x.width]
    node.ready = x.phase + 1
    node._block = None
    return node


FUNCTIONS.update(row=row_of)
