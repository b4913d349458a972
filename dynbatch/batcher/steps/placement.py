"""The part of a memory plan for one step: the arrays of each pass, as intervals of an arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.block import Block
from dynbatch.memory import Interval


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
    saved:     what backward will read beside values, by name, with rows and width.
    workspace: of scratch.
    narrow:    the place of each of these that lies in 16 bits until backward.
    widened:   places where some of them are float32 again.
    keeps:     `Batch.keeps`; and `recompute`, `Batch.recompute`.
    narrow_input: of its one input, where that is read in 16 bits; else None.
    """

    blocks: tuple[Interval, ...]
    packings: tuple[Interval | None, ...]
    saved: Mapping[str, tuple[Interval, int, int]]
    workspace: Interval | None
    keeps: bool
    recompute: int
    narrow_input: Interval | None = None
    narrow: Mapping[Left, Interval] = {}
    widened: Mapping[Left, Interval] = {}

    def place(self, left: Left) -> Interval:
        """The place of something that forward leaves, in float32 as it was left."""
        return self.blocks[left] if isinstance(left, int) else self.saved[left][0]

    def resting_blocks(self) -> list[Interval]:
        """The places of the output between forward and backward."""
        return [self.narrow.get(number, block) for number, block in enumerate(self.blocks)]

    def resting_saved(self) -> list[Interval]:
        """The places of what backward will read beside values until then."""
        return [self.narrow.get(name, block) for name, (block, _, _) in self.saved.items()]

    def read_by_backward(self) -> list[Interval]:
        """The places of what backward reads beside values."""
        pairs = zip(self.saved, self.resting_saved(), strict=True)
        return [self.widened.get(name, block) for name, block in pairs]


class GradientTarget(NamedTuple):
    """The place that the gradient of one input is written to.

    direct:   straight into the gradient block: the first writer, and it writes all that it reads.
    adds:     likewise, but the kernel adds to what lies there.
    scratch:  a place where it is computed, then added to the blocks that need a gradient.
    assigned: of a structural step, which moves block by block: the blocks that it writes first.
    """

    direct: bool = False
    adds: bool = False
    scratch: Interval | None = None
    assigned: frozenset[Block] = frozenset()


class BackwardPlacement(NamedTuple):
    """One backward of a step, or of a step whose forward makes its gradient as well.

    packings:  of the inputs that are packed again.
    targets:   of each input; None where no gradient is wanted.
    workspace: of scratch.
    owned:     parameters whose own gradient buffer the step may write: it comes first.
    deferred:  weights whose products are made together with those of other steps.
    output:    whether the step reads its own output.
    narrow_input: of its one input, where that is read in 16 bits; else None.
    """

    packings: tuple[Interval | None, ...]
    targets: tuple[GradientTarget | None, ...]
    workspace: Interval | None
    owned: frozenset[int]
    deferred: frozenset[int]
    output: bool
    narrow_input: Interval | None = None


NOWHERE = Placement((), (), {}, None, True, 0)
NO_BACKWARD = BackwardPlacement((), (), None, frozenset(), frozenset(), False)
