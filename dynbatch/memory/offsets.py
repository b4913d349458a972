"""Offsets of blocks, from a cache where the same blocks were placed before."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.memory.planner import Interval, plan_offsets
from dynbatch.recent import Recent

CACHED = 64
MOST_CACHED = 1000
"""Blocks above which a set is not kept: a graph so large is seldom built twice."""

Columns = tuple[tuple[int, ...], ...]
_known: Recent[Columns, tuple[int, tuple[int, ...]]] = Recent(CACHED)


def assign_offsets(
    sizes: Sequence[int], firsts: Sequence[int], lasts: Sequence[int], alignments: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """Elements of an arena, and the offset of each block in it, as `plan_offsets` finds them.

    Blocks of the same sizes and lifetimes cost a hash. So an estimate and the run that follows it,
    or mini-batches of the same lengths, are planned once.

    Args:
        sizes, firsts, lasts, alignments: of each block, as in `Interval`.
    """
    if not sizes:
        return 0, ()
    key = (tuple(sizes), tuple(firsts), tuple(lasts), tuple(alignments))
    known = _known.find(key) if len(sizes) <= MOST_CACHED else None
    if known is not None:
        return known
    blocks = [Interval(*row) for row in zip(*key, strict=True)]
    total = plan_offsets(blocks)
    answer = total, tuple([block.offset for block in blocks])
    return _known.enter(key, answer) if len(sizes) <= MOST_CACHED else answer
