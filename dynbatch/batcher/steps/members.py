"""`Members`: the operators of a batch of blocks' calls, as the nodes of one batch step.

A step needs lengths, widths and attributes, which follow from the sizes of the calls; node by node
they are made only for those who look at single nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from dynbatch.batcher.steps.block_batch import BlockBatch
from dynbatch.batcher.steps.member_parts import (
    ColumnsPart,
    MembersPart,
    PortsPart,
    StepMembers,
    joined,
)
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Port, Structural


class Members(StepMembers):
    """The nodes of one step: operators of a program, all of one signature."""

    batch: BlockBatch

    def __init__(self, batch: BlockBatch, operators: Sequence[int]) -> None:
        self.batch, self.operators = batch, list(operators)
        for number, operator in enumerate(operators):
            batch.members[operator] = (self, number)
        sizes = [batch.rows_and_widths(operator) for operator in operators]
        self.lengths = [n for rows, _ in sizes for n in rows] if len(sizes) > 1 else sizes[0][0]
        self.widths = [n for _, widths in sizes for n in widths] if len(sizes) > 1 else sizes[0][1]
        self.is_shared = batch.program.operators[operators[0]].is_shared
        self.first, self.end = 0, len(self.lengths)
        self.per_operator = self.end // len(self.operators)
        self.block = None
        self._parts: list[MembersPart] = []  # of each operator
        self._nodes: dict[int, Operation] = {}

    # Columns --------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> list[int]:
        elements = np.multiply(self.lengths[:-1], self.widths[:-1])
        return [0, *np.cumsum(elements).tolist()]

    @property
    def start(self) -> int:
        return 0

    def starts(self) -> list[int]:
        return self._starts

    def part(self, number: int) -> MembersPart | None:
        if not self._parts:
            if self.block is None or self.is_shared:
                return None
            self._parts = self.by_operator()
        return self._parts[number]

    def by_operator(self) -> list[MembersPart]:
        firsts = range(0, self.end, self.per_operator)
        return [MembersPart(self, first, first + self.per_operator) for first in firsts]

    def counts(self) -> list[int]:
        """The number of inputs of each node."""
        inputs = [op.inputs for op in self._operators for _ in range(self.per_operator)]
        return list(map(len, inputs))

    @property
    def _operators(self) -> list[Any]:
        return [self.batch.program.operators[k] for k in self.operators]

    def sources(self, node_type: type[Operation]) -> list[Sequence[Any]]:
        """The values that make up each packed input, as `Operation.sources`."""
        if not node_type.splits:
            return node_type.sources(self)  # type: ignore[return-value]
        if node_type.variadic:
            return [self.reads()]
        return [self.input_nodes(position) for position in range(len(self._operators[0].inputs))]

    def reads(self) -> Sequence[Any]:
        """All that the nodes of a variadic type read.

        Node by node, but for moves, which may be in any order: input by input.
        """
        operators = self._operators
        moves = issubclass(type(operators[0].node), Structural)
        if moves or {len(op.inputs) for op in operators} == {1}:
            parts = [self._read_part(op.node, x) for op in operators for x in op.inputs]
            if None not in parts:
                nodes: Sequence[Any] = joined(cast("list[MembersPart]", parts))
                return nodes
        return [x for node in self for x in node.reads()]

    def _read_part(self, reader: Operation, operator: int) -> MembersPart | None:
        part = self.batch.part_of(operator)
        if part is not None and isinstance(reader, Port):
            return PortsPart(part, reader.part)
        return part

    # Places ---------------------------------------------------------------------------------------

    def lie_in(self, block: Any) -> None:
        """Lie side by side in a block, or, if it is None, each where its input does."""
        if self.block is not block:
            self.block, self._parts = block, []
        for number, node in self._nodes.items():
            self._place(node, number)

    def divide(self, columns: Sequence[tuple[Any, int]]) -> None:
        """Have the nodes of each operator be columns, the first element of which is there."""
        self.block = None
        firsts = range(0, self.end, self.per_operator)
        self._parts = [
            ColumnsPart(self, first, first + self.per_operator, *cut)
            for first, cut in zip(firsts, columns, strict=True)
        ]
        for number, node in self._nodes.items():
            self._place(node, number)

    def _place(self, node: Operation, number: int) -> None:
        if self.block is not None:
            node._block, node._position = self.block, number
            node._start = self._starts[number] if number else 0  # of every step the first is made
        elif self._parts:
            part, k = self._parts[number // self.per_operator], number % self.per_operator
            node._block, node._position, node._start = part.block, k, part.starts()[k]

    # Single nodes ---------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        node = self._nodes.get(key) if key.__class__ is int else None
        return super().__getitem__(key) if node is None else node

    def _node(self, number: int) -> Operation:
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = self._made(number)
        return node

    def _made(self, number: int) -> Operation:
        """A node as it would be if the sentence's operators were nodes of the graph."""
        batch, (position, k) = self.batch, divmod(number, self.per_operator)
        operator, call = self.operators[position], batch.calls[k]
        op = batch.program.operators[operator]
        node: Operation = object.__new__(type(op.node))
        for name, value in op.constants:
            setattr(node, name, value)
        node.graph, node.index, node.phase = call.graph, call.index, call.phase
        node.ndim, node.rows, node.width = op.node.ndim, self.lengths[number], self.widths[number]
        node.ragged, node.sig = op.node.ragged, op.node.sig
        if isinstance(node, Folded):
            node.stands_for = _stand_in(node)
        for name in op.bound:
            setattr(node, name, batch.column(operator, name, slice(k, k + 1))[0])
        node.inputs = tuple([batch.node_of(x, k) for x in op.inputs])
        node._block = None
        self._place(node, number)
        return node

    def rest(self) -> None:
        """Let go of the calls, and of all nodes."""
        self._nodes = {}
        self.batch.bind(())

    def forget(self) -> None:
        """Cut the references from nodes to arrays and to nodes of the graph, and circles."""
        for node in self._nodes.values():
            node._block, node.inputs = None, ()
        self.block, self._parts = None, []
        self.batch.forget()


def _stand_in(node: Folded) -> Any:
    stand_in = object.__new__(Operation)
    stand_in.graph, stand_in.index, stand_in.phase = node.graph, node.index, node.phase
    stand_in.ndim, stand_in.rows, stand_in.width = node.ndim, node.rows, node.width
    stand_in.ragged = node.ragged
    return stand_in
