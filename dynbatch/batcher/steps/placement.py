"""The part of a memory plan for one step: the arrays of each pass.

In a plan a place is a row of its table of blocks; `at` makes it the first element in an arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.block import Block


def halves_size(elements: int) -> int:
    """Elements of an arena that so many numbers of 16 bits take."""
    return -(-elements // 2)


def halves(arena: Array, start: int, elements: int) -> Array:
    """Room in the arena for numbers of 16 bits."""
    return arena[start : start + halves_size(elements)].view(np.uint16)[:elements]


Left: TypeAlias = int | str
"""Something that a forward leaves: an output, by its number, or what it saves, by its name."""


class Placement(NamedTuple):
    """One forward of a step.

    blocks:    of its output, and of its ports.
    packings:  of the inputs that are packed together; None for views.
    saved:     what backward will read beside values, by name: place, rows and width.
    workspace: place and elements of scratch.
    narrow:    the place of each of these that lies in 16 bits until backward.
    widened:   places where some of them are float32 again.
    keeps:     `Batch.keeps`; and `recompute`, `Batch.recompute`.
    narrow_input: of its one input, where that is read in 16 bits; else None.
    """

    blocks: tuple[int, ...]
    packings: tuple[int | None, ...]
    saved: Mapping[str, tuple[int, int, int]]
    workspace: tuple[int, int] | None
    keeps: bool
    recompute: int
    narrow_input: int | None = None
    narrow: Mapping[Left, int] = {}
    widened: Mapping[Left, int] = {}

    def at(self, offsets: Sequence[int], of_workspaces: Sequence[int]) -> Placement:
        """The first elements, from those of the rows, and of the rows of workspaces."""
        workspace, narrow = self.workspace, self.narrow_input
        return Placement(
            tuple([offsets[row] for row in self.blocks]),
            tuple([None if row is None else offsets[row] for row in self.packings]),
            {name: (offsets[row], n, k) for name, (row, n, k) in self.saved.items()},
            None if workspace is None else (of_workspaces[workspace[0]], workspace[1]),
            self.keeps,
            self.recompute,
            None if narrow is None else offsets[narrow],
            self.narrow and {left: offsets[row] for left, row in self.narrow.items()},
            self.widened and {left: offsets[row] for left, row in self.widened.items()},
        )

    def place(self, left: Left) -> int:
        """The place of something that forward leaves, in float32 as it was left."""
        return self.blocks[left] if isinstance(left, int) else self.saved[left][0]

    def resting_blocks(self) -> list[int]:
        """The places of the output between forward and backward."""
        return [self.narrow.get(number, row) for number, row in enumerate(self.blocks)]

    def resting_saved(self) -> list[int]:
        """The places of what backward will read beside values until then."""
        return [self.narrow.get(name, row) for name, (row, _, _) in self.saved.items()]

    def read_by_backward(self) -> list[int]:
        """The places of what backward reads beside values."""
        pairs = zip(self.saved, self.resting_saved(), strict=True)
        return [self.widened.get(name, row) for name, row in pairs]


class GradientTarget(NamedTuple):
    """The place that the gradient of one input is written to.

    direct:   straight into the gradient block: the first writer, and it writes all that it reads.
    adds:     likewise, but the kernel adds to what lies there.
    scratch:  a place where it is computed, then added to the blocks that need a gradient.
    assigned: of a structural step, which moves block by block: the blocks that it writes first.
    """

    direct: bool = False
    adds: bool = False
    scratch: int | None = None
    assigned: frozenset[Block] = frozenset()

    def at(self, offsets: Sequence[int]) -> GradientTarget:
        assert self.scratch is not None
        return GradientTarget(scratch=offsets[self.scratch])


class BackwardPlacement(NamedTuple):
    """One backward of a step, or of a step whose forward makes its gradient as well.

    packings:  of the inputs that are packed again.
    targets:   of each input; None where no gradient is wanted.
    workspace: place and elements of scratch.
    owned:     parameters whose own gradient buffer the step may write: it comes first.
    deferred:  weights whose products are made together with those of other steps.
    output:    whether the step reads its own output.
    narrow_input: of its one input, where that is read in 16 bits; else None.
    """

    packings: tuple[int | None, ...]
    targets: tuple[GradientTarget | None, ...]
    workspace: tuple[int, int] | None
    owned: frozenset[int]
    deferred: frozenset[int]
    output: bool
    narrow_input: int | None = None

    def at(self, offsets: Sequence[int]) -> BackwardPlacement:
        """The first elements, from those of the rows."""
        workspace, narrow = self.workspace, self.narrow_input
        return BackwardPlacement(
            tuple([None if row is None else offsets[row] for row in self.packings]),
            tuple([x if x is None or x.scratch is None else x.at(offsets) for x in self.targets]),
            None if workspace is None else (offsets[workspace[0]], workspace[1]),
            self.owned,
            self.deferred,
            self.output,
            None if narrow is None else offsets[narrow],
        )


NOWHERE = Placement((), (), {}, None, True, 0)
NO_BACKWARD = BackwardPlacement((), (), None, frozenset(), frozenset(), False)
