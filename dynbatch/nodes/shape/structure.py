"""Structural nodes: values made of rectangles of their inputs, without arithmetic.

All run as one kernel: a table of moves for the whole mini-batch, whatever the widths and lengths.
                       Backward reads the same table in the other direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.nodes.batch import Batch, sizes_of
from dynbatch.nodes.node import ROWS, Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.signature import intern_signature

Column = int | list[int]
"""A number for each rectangle, or one for all."""


class Rectangle(NamedTuple):
    """`rows` x `width` elements of a source node that become a part of a target node.

    Row i comes from source row `source_row + i * source_step` and goes to target row
    `target_row + i`; columns start at `source_column` and `target_column`.
    """

    source: Node
    target: Node
    rows: int
    width: int
    source_row: int
    source_step: int
    source_column: int
    target_row: int
    target_column: int

    def elements(self) -> tuple[Array, Array]:
        """The elements of the source, and of the target, counted from each node's first."""
        source, target = [
            (first + step * np.arange(self.rows))[:, None] * node.width
            + np.arange(column, column + self.width)
            for node, first, step, column in (
                (self.source, self.source_row, self.source_step, self.source_column),
                (self.target, self.target_row, 1, self.target_column),
            )
        ]
        return source, target


class Rectangles(NamedTuple):
    """Rectangles, one for each pair of source and target: each field is a column of them.

    Where `rows` is None, they are all rows of the sources and all of the targets.
    """

    sources: Sequence[Any]
    targets: Sequence[Any]
    rows: Column | None
    width: Column
    source_row: Column = 0
    source_step: Column = 1
    source_column: Column = 0
    target_row: Column = 0
    target_column: Column = 0

    def each(self) -> Iterator[Rectangle]:
        """The rectangles one by one."""
        count = len(self.sources)
        rows = sizes_of(self.sources)[0] if self.rows is None else self.rows
        columns = [[c] * count if isinstance(c, int) else c for c in (rows, *self[3:])]
        return map(Rectangle, self.sources, self.targets, *columns)


class Structural(Operation):
    """Base of structural nodes. Subclasses give `rectangles`, injective on the inputs."""

    __slots__ = ()
    only_moves = True
    any_shape = True
    variadic = True

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        """The moves of all nodes of the batch, adjacent ones next to each other."""
        raise NotImplementedError(f"{cls.__name__}.rectangles")

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        return cls.is_built_in

    @classmethod
    def moves(cls, batch: Batch) -> Sequence[Rectangles]:
        """`rectangles`, made once a batch: planning, forward and backward read the same."""
        known: Sequence[Rectangles] | None = batch.memo.get("rectangles")
        if known is None:
            known = batch.memo["rectangles"] = tuple(cls.rectangles(batch))
        return known

    @classmethod
    def rectangles_of(cls, node: Node) -> list[Rectangle]:
        """The moves of one node."""
        batch = Batch([node], node.graph.dtype)
        return [r for rectangles in cls.rectangles(batch) for r in rectangles.each()]


class PortPlace:
    """The place of one node's port: the attributes of a node that a move reads."""

    __slots__ = ("_block", "_position", "_start", "rows", "width")

    def __init__(self, owner: Node, part: int) -> None:
        self._block = owner._block.ports[part]
        self._position = owner._position
        self.width: int = self._block.width
        self.rows = 1
        self._start = owner._position * self.width


class Port(Structural):
    """A further output of a node, as a vector: the last state of a scan, for instance.

    Shape:  a scan -> (H,).
    Batches with:  every other Port.
    """

    __slots__ = ("part",)
    moves_all = True
    part: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        (owner,) = self.inputs
        assert isinstance(owner, Operation)
        return (owner.port_widths()[self.part],)

    def reads(self) -> Sequence[PortPlace]:
        return (PortPlace(self.inputs[0], self.part),)

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        yield Rectangles(batch.reads(), batch.nodes, None, batch.widths)


PORT = intern_signature((Port,))


def port_of(owner: Node, part: int, width: int) -> Port:
    """Port number `part` of a node, a vector of so many features."""
    node = Port.__new__(Port)
    node.part = part
    node.complete_as((owner,), owner.graph, 1, 1, width, ROWS, PORT)
    return node


class Reverse(Structural):
    """The rows of a sentence, the last one first: y_t = x_{T-1-t}.

    Batches with:  every other Reverse.
    """

    __slots__ = ()
    shape_rule = "x (T, D) -> (T, D)"
    shape_fix = "F.stack vectors to rows first; a vector has one row"
    moves_all = True

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        rows, width = batch.lengths, batch.widths
        last = [count - 1 for count in rows]
        yield Rectangles(
            batch.input_nodes(0), batch.nodes, rows, width, source_row=last, source_step=-1
        )


def reverse(x: Node) -> Node:
    """The rows of x, the last one first, as `torch.flip(x, [0])`.

    Raises:
        ShapeError: x is not a matrix.
    """
    return Reverse(x)
