"""`Members`: the operators of a batch of blocks' calls, as the nodes of one batch step.

A step needs lengths, widths and attributes, which follow from the sizes of the calls; node by node
they are made only for those who look at single nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np

from dynbatch.batcher.steps.block_batch import BlockBatch
from dynbatch.batcher.steps.member_parts import (
    ColumnsPart,
    MembersPart,
    joined,
    places_of,
)
from dynbatch.blocks.call import ResultPlace
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural


class Members(Sequence[Any]):
    """The nodes of one step: operators of a program, for each call of a batch.

    Nodes of the first operator come first, in the order of the calls.

    Attributes:
        operators: positions in the program; all of one signature.
        block:     where the values lie; None until there is one, or where they lie in several.
        columns:   of each operator, the part that its nodes are of wider rows; see `ColumnsStep`.
        is_shared: whether there is one node for all calls.
    """

    def __init__(self, batch: BlockBatch, operators: Sequence[int]) -> None:
        self.batch = batch
        self.operators = list(operators)
        program = batch.program
        self.is_shared = program.operators[operators[0]].is_shared
        self.block: Any = None
        self.columns: Sequence[ColumnsPart] = ()
        self._count = 1 if self.is_shared else len(batch.calls)
        self._nodes: dict[int, Operation] = {}
        for number, operator in enumerate(operators):
            batch.members[operator] = (self, number)
        sizes = [batch.rows_and_widths(operator) for operator in operators]
        self.lengths = [n for rows, _ in sizes for n in rows] if len(sizes) > 1 else sizes[0][0]
        self.widths = [n for _, widths in sizes for n in widths] if len(sizes) > 1 else sizes[0][1]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: Any) -> Any:
        if key.__class__ is int:
            known = self._nodes.get(key)
            if known is not None:
                return known
        if isinstance(key, slice):
            return [self[k] for k in range(*key.indices(len(self)))]
        if key < 0:
            key += len(self)
        if not 0 <= key < len(self):
            raise IndexError(key)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._made(key)
        return node

    def _made(self, place: int) -> Operation:
        """A node as it would be if the sentence's operators were nodes of the graph."""
        op = self.batch.program.operators[self.operators[place // self._count]]
        node = object.__new__(type(op.node))
        for name, value in op.constants:
            setattr(node, name, value)
        node.ndim, node.rows, node.width = op.node.ndim, self.lengths[place], self.widths[place]
        node.ragged, node.sig = op.node.ragged, op.node.sig
        self._tell(node, place)
        node._block = None
        if self.block is not None or self.columns:
            self._place(node, place)
        return node

    def _tell(self, node: Operation, place: int) -> None:
        """Set what a node has of its call."""
        operator, k = self.operators[place // self._count], place % self._count
        op, call = self.batch.program.operators[operator], self.batch.calls[k]
        node.graph, node.index, node.phase = call.graph, call.index, call.phase
        if isinstance(node, Folded):
            node.stands_for = _stand_in(node)
        for name in op.bound:
            setattr(node, name, self.batch.value(operator, name, k))
        node.inputs = tuple([self._input(x, k) for x in op.inputs])

    def _input(self, operator: int, call: int) -> Node:
        if operator < 0:
            return self.batch.calls[call].inputs[-1 - operator]
        members, number = self.batch.members[operator]
        node: Node = members[number if members.is_shared else number * self._count + call]
        return node

    def _place(self, node: Operation, place: int) -> None:
        if self.columns:
            number, k = divmod(place, self._count)
            part = self.columns[number]
            node._block, node._position, node._start = part.block, k, part.starts[k]
            return
        node._block, node._position = self.block, place
        node._start = self.starts[place] if place else 0  # the first node is made of every step

    def stretch(self) -> tuple[Any, int] | None:
        """The block in which all lie side by side, and the first element there."""
        return None if self.block is None else (self.block, 0)

    @cached_property
    def starts(self) -> list[int]:
        elements = np.multiply(self.lengths, self.widths)
        return [0, *np.cumsum(elements).tolist()]

    def lie_in(self, block: Any) -> None:
        self.block = block
        for position, node in self._nodes.items():
            self._place(node, position)

    def divide(self, columns: Sequence[tuple[Any, int]]) -> None:
        """Have the nodes of each operator be columns, the first element of which is there."""
        edges = range(0, len(self) + 1, self._count)
        self.columns = [
            ColumnsPart(self, *span, *part)
            for span, part in zip(pairwise(edges), columns, strict=True)
        ]
        for position, node in self._nodes.items():
            self._place(node, position)

    def places(self, operator: int) -> list[ResultPlace]:
        if self.block is None or self.is_shared:
            return places_of(self.of_operator(operator))
        first = operator * self._count
        starts = self.starts[first : first + self._count]
        return [ResultPlace(self.block, first + k, start) for k, start in enumerate(starts)]

    def of_operator(self, number: int) -> list[Any]:
        """The node of each call that one of the operators has there."""
        count = len(self.batch.calls)
        if self.is_shared:
            return [self[number]] * count
        return self[number * count : (number + 1) * count]  # type: ignore[no-any-return]

    def column(self, name: str) -> Sequence[Any]:
        """An attribute of each node, or of all nodes of an operator; see `ResumedCall`."""
        columns = [self.batch.column(operator, name) for operator in self.operators]
        return columns[0] if len(columns) == 1 else [x for column in columns for x in column]

    def by_operator(self) -> list[OperatorNodes]:
        return [OperatorNodes(self, number, self._count) for number in range(len(self.operators))]

    def input_nodes(self, position: int) -> Sequence[Node]:
        return self.batch.inputs_of(self.operators, position)

    def counts(self) -> list[int]:
        program = self.batch.program
        return [
            len(program.operators[k].inputs) for k in self.operators for _ in range(self._count)
        ]

    def sources(self, node_type: type[Operation]) -> list[Sequence[Any]]:
        """The values that make up each packed input, as `Operation.sources`."""
        if not node_type.splits:
            return node_type.sources(self)  # type: ignore[return-value]
        if node_type.variadic:
            return [self.reads()]
        count = len(self.batch.program.operators[self.operators[0]].inputs)
        return [self.batch.inputs_of(self.operators, position) for position in range(count)]

    def reads(self) -> Sequence[Any]:
        """All that the nodes of a variadic type read.

        Node by node, but for moves, which may be in any order: input by input.
        """
        batch = self.batch
        operators = [batch.program.operators[k] for k in self.operators]
        if issubclass(type(operators[0].node), Structural) or {
            len(op.inputs) for op in operators
        } == {1}:
            parts = [
                batch.part_read(op, position)
                for op in operators
                for position in range(len(op.inputs))
            ]
            if None not in parts:
                nodes: Sequence[Any] = joined(cast("list[MembersPart]", parts))
                return nodes
        return [x for node in self for x in node.reads()]

    def rest(self) -> None:
        """Let go of the calls, and of all nodes but those of the first one."""
        unbound: Any = None
        for node in self._nodes.values():
            node._block, node.inputs, node.graph = None, (), unbound
        self._nodes = {k: node for k, node in self._nodes.items() if k % self._count == 0}
        self.batch.bind(())

    def bind(self) -> None:
        """Have the nodes be those of the batch's calls."""
        for position, node in self._nodes.items():
            self._tell(node, position)

    def forget(self) -> None:
        """Cut the references from nodes to arrays and to nodes of the graph, and circles."""
        for node in self._nodes.values():
            node._block, node.inputs = None, ()
        self.block, self.columns = None, ()
        self.batch.forget()


def _stand_in(node: Folded) -> Any:
    stand_in = object.__new__(Operation)
    stand_in.graph, stand_in.index, stand_in.phase = node.graph, node.index, node.phase
    stand_in.ndim, stand_in.rows, stand_in.width = node.ndim, node.rows, node.width
    stand_in.ragged = node.ragged
    return stand_in


class OperatorNodes(MembersPart):
    """The nodes of one of the operators of a step."""

    def __init__(self, members: Members, place: int, count: int) -> None:
        super().__init__(members, place * count, (place + 1) * count)
        self._step = members
        self._operator = members.operators[place]

    def column(self, name: str) -> Sequence[Any]:
        return self._step.batch.column(self._operator, name)

    def input_nodes(self, position: int) -> Sequence[Node]:
        return self._step.batch.inputs_of([self._operator], position)
