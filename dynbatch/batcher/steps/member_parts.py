"""Nodes of a block's step, or some of them, as columns: lengths, widths, places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import Any

import numpy as np

from dynbatch.blocks.call import ResultPlace
from dynbatch.nodes.shape.structure import PortPlace


class MembersPart(Sequence[Any]):
    """Nodes of successive operators of a block's step: those of all calls, operator by operator.

    Attributes:
        first, end: which of these they are.
        operators: positions in the program.
        block:     in which they lie side by side; None while they do not.
        lengths, widths: of their values.
    """

    operators: Sequence[int]
    block: Any
    lengths: list[int]
    widths: list[int]

    def __init__(self, members: StepMembers, first: int, end: int) -> None:
        self._members, self.first, self.end = members, first, end
        self.operators = members.operators[
            first // members.per_operator : end // members.per_operator
        ]
        self.block = members.block
        self.lengths, self.widths = members.lengths[first:end], members.widths[first:end]

    @property
    def members(self) -> StepMembers:
        """All nodes of the step."""
        return self._members

    def stretch(self) -> tuple[Any, int] | None:
        """The block in which all lie side by side, and the first element there."""
        return None if self.block is None else (self.block, self.start)

    @property
    def start(self) -> int:
        return self.starts()[0]

    def starts(self) -> list[int]:
        """The first element of each in the block."""
        return self.members.starts()[self.first : self.end]

    @property
    def elements(self) -> int:
        return sum(map(mul, self.lengths, self.widths))

    def column(self, name: str) -> Sequence[Any]:
        """An attribute of each node, or of all nodes of an operator; see `ResumedCall`."""
        batch = self.members.batch
        columns = [batch.column(operator, name) for operator in self.operators]
        return columns[0] if len(columns) == 1 else [x for column in columns for x in column]

    def input_nodes(self, position: int) -> Sequence[Any]:
        """The value that each reads at a position; nodes of one step where they lie so."""
        batch = self.members.batch
        read = [batch.program.operators[k].inputs[position] for k in self.operators]
        parts = [batch.part_of(operator) for operator in read]
        if None not in parts:
            nodes: Sequence[Any] = joined(parts)
            return nodes
        if self.members.is_shared:  # and so is what it reads
            return [batch.node_of(operator, 0) for operator in read]
        return [node for operator in read for node in batch.nodes_of(operator)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[k] for k in range(*key.indices(len(self)))]
        count = len(self.lengths)
        if not -count <= key < count:
            raise IndexError(key)
        return self._node(key % count)

    def _node(self, number: int) -> Any:
        return self.members[self.first + number]


class StepMembers(MembersPart):
    """All nodes of a step.

    Attributes:
        batch:     the calls, a `BlockBatch`.
        is_shared: whether there is one node for all calls.
        per_operator: how many nodes each operator has.
    """

    batch: Any
    is_shared: bool
    per_operator: int

    @property
    def members(self) -> StepMembers:
        """These, and no reference to itself, which would outlive the graph as a cycle."""
        return self

    def part(self, number: int) -> MembersPart | None:
        """The nodes of one operator, where they lie side by side."""
        raise NotImplementedError


class PortsPart(MembersPart):
    """A further output of each node of another part."""

    def __init__(self, nodes: MembersPart, port: int) -> None:
        super().__init__(nodes.members, nodes.first, nodes.end)
        self._port = port
        self.block = nodes.block.ports[port]
        self.lengths = [1] * len(self)
        self.widths = [self.block.width] * len(self)

    def starts(self) -> list[int]:
        return [position * self.block.width for position in range(self.first, self.end)]

    def _node(self, number: int) -> PortPlace:
        return PortPlace(super()._node(number), self._port)


class ColumnsPart(MembersPart):
    """Nodes that are columns of the rows of other nodes; the first element is at `start` there."""

    def __init__(
        self, members: StepMembers, first: int, end: int, columns: Any, start: int
    ) -> None:
        super().__init__(members, first, end)
        self.block = columns
        self._start = start

    @property
    def start(self) -> int:
        return self._start

    def starts(self) -> list[int]:
        steps = np.cumsum([0, *self.lengths[:-1]]) * self.block.stride
        starts: list[int] = (steps + self.start).tolist()
        return starts


class MembersParts(Sequence[Any]):
    """Nodes of several steps, or some nodes of one step several times."""

    def __init__(self, parts: Sequence[MembersPart]) -> None:
        self.parts = parts
        self.lengths = [n for part in parts for n in part.lengths]
        self.widths = [n for part in parts for n in part.widths]

    def stretch(self) -> None:
        """None: they do not lie side by side."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: Any) -> Any:
        return [node for part in self.parts for node in part][place]


def places_of(nodes: Sequence[Any]) -> list[ResultPlace]:
    if isinstance(nodes, MembersPart):
        starts = enumerate(nodes.starts(), nodes.first)
        return [ResultPlace(nodes.block, position, start) for position, start in starts]
    return [ResultPlace(x._block, x._position, x._start) for x in nodes]


def joined(parts: Sequence[MembersPart]) -> Any:
    """The nodes of the parts as those of one step, where they follow each other there."""
    first, last = parts[0], parts[-1]
    is_plain = type(first) is MembersPart
    if len(parts) > 1 and not (
        is_plain and all([a.members is b.members and a.end == b.first for a, b in pairwise(parts)])
    ):
        return MembersParts(parts)
    if is_plain and first.first == 0 and last.end == first.members.end:
        return first.members
    return first if len(parts) == 1 else MembersPart(first.members, first.first, last.end)
