"""Parts of the nodes of a block's step, as other steps read them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import Any, Protocol

import numpy as np

from dynbatch.blocks.call import ResultPlace
from dynbatch.nodes.shape.structure import PortPlace


class StepMembers(Protocol):
    """The nodes of one step; see `members.Members`."""

    block: Any
    is_shared: bool
    lengths: list[int]
    widths: list[int]
    columns: Sequence[Any]

    def of_operator(self, number: int) -> list[Any]: ...

    def places(self, operator: int) -> list[ResultPlace]: ...

    @property
    def starts(self) -> list[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, place: Any) -> Any: ...


class MembersPart(Sequence[Any]):
    """Some successive nodes of a step, which lie in one block."""

    def __init__(self, members: StepMembers, first: int, end: int) -> None:
        self.members = members
        self.first = first
        self.end = end
        self.block = members.block
        self.lengths = members.lengths[first:end]
        self.widths = members.widths[first:end]

    def stretch(self) -> tuple[Any, int] | None:
        """The block in which all lie side by side, and the first element there."""
        return self.block, self.start

    @property
    def start(self) -> int:
        return self.starts[0]

    @property
    def elements(self) -> int:
        return sum(map(mul, self.lengths, self.widths))

    @property
    def starts(self) -> list[int]:
        return self.members.starts[self.first : self.end]

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.members[self.first : self.end][place]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.members[self.first + place % len(self)]


class PortsPart(MembersPart):
    """A further output of some successive nodes of a step."""

    def __init__(self, members: StepMembers, first: int, end: int, part: int) -> None:
        super().__init__(members, first, end)
        self.part = part
        self.block = members.block.ports[part]
        self.lengths = [1] * len(self)
        self.widths = [self.block.width] * len(self)

    @property
    def starts(self) -> list[int]:
        return [position * self.widths[0] for position in range(self.first, self.end)]

    def __getitem__(self, place: Any) -> Any:
        nodes = super().__getitem__(place)
        if isinstance(place, slice):
            return [PortPlace(node, self.part) for node in nodes]
        return PortPlace(nodes, self.part)


class ColumnsPart(MembersPart):
    """Some successive nodes of a step that are columns of the rows of other nodes."""

    def __init__(
        self, members: StepMembers, first: int, end: int, columns: Any, start: int
    ) -> None:
        super().__init__(members, first, end)
        self.block = columns
        self._start = start

    @property
    def start(self) -> int:
        return self._start

    @property
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
    return [ResultPlace(x._block, x._position, x._start) for x in nodes]


def joined(parts: Sequence[MembersPart]) -> Any:
    """The nodes of the parts as those of one step, where they follow each other there."""
    first, last = parts[0], parts[-1]
    if isinstance(first, PortsPart | ColumnsPart):
        return first if len(parts) == 1 else MembersParts(parts)
    follow = all([a.members is b.members and a.end == b.first for a, b in pairwise(parts)])
    if not follow:
        return MembersParts(parts)
    if first.first == 0 and last.end == len(first.members):
        return first.members
    return first if len(parts) == 1 else MembersPart(first.members, first.first, last.end)
