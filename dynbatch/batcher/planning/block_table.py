"""`BlockTable`: the blocks of a run, a row each, with sizes and lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dynbatch.memory import Interval


class BlockTable:
    """Blocks to be placed in one arena, a row each.

    Attributes:
        sizes:      elements; `firsts` and `lasts` are stages, both inclusive.
        alignments: the offset is a multiple of so many elements.
        causes:     what it is for, and `owners`, the node type that needs it: for reports.
        are_forms:  whether it has what another one has, in 16 bits or widened from these.
    """

    __slots__ = ("alignments", "are_forms", "causes", "firsts", "lasts", "owners", "sizes")

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.alignments: list[int] = []
        self.causes: list[str] = []
        self.owners: list[str] = []
        self.are_forms: list[bool] = []

    def add(
        self, size: int, first: int, last: int, width: int, cause: str, owner: str,
        is_form: bool = False,
    ) -> int:  # fmt: skip
        """Add a block; return its row."""
        self.sizes.append(size)
        self.firsts.append(first)
        self.lasts.append(last)
        self.alignments.append(width or 1)
        self.causes.append(cause)
        self.owners.append(owner)
        self.are_forms.append(is_form)
        return len(self.sizes) - 1

    @property
    def distinct(self) -> int:
        """Elements of all blocks, none of them in another form."""
        pairs = zip(self.sizes, self.are_forms, strict=True)
        return sum([size for size, is_form in pairs if not is_form])

    def fullest(self, stages: int) -> tuple[int, int]:
        changes = [0] * (stages + 1)
        for size, first, last in zip(self.sizes, self.firsts, self.lasts, strict=True):
            changes[first] += size
            if last < stages:
                changes[last + 1] -= size
        alive = list(accumulate(changes))
        most = max(alive)
        return (alive.index(most), most) if most else (0, 0)

    def intervals(self, offsets: Sequence[int]) -> list[Interval]:
        columns = (self.sizes, self.firsts, self.lasts, self.alignments)
        places = offsets or [-1] * len(self.sizes)
        return [
            Interval(*row) for row in zip(*columns, places, self.causes, self.owners, strict=True)
        ]
