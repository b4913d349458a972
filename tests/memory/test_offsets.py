"""Places of blocks that were placed before."""

from unittest.mock import patch

from dynbatch.memory import Interval, offsets


def blocks(*sizes):
    return [Interval(size, k, k + 1, 1 + k % 3) for k, size in enumerate(sizes)]


def test_the_same_blocks_are_planned_once():
    offsets._known.clear()
    first, again, other = blocks(5, 7, 3, 9), blocks(5, 7, 3, 9), blocks(5, 7, 3, 8)
    with patch.object(offsets, "plan_offsets", wraps=offsets.plan_offsets) as planned:
        total = offsets.place(first)
        assert offsets.place(again) == total
        assert planned.call_count == 1
        offsets.place(other)
        assert planned.call_count == 2
    assert [block.offset for block in again] == [block.offset for block in first]


def test_only_so_many_are_remembered():
    offsets._known.clear()
    for size in range(1, offsets.CACHED + 20):
        offsets.place(blocks(size, size))
    assert len(offsets._known) == offsets.CACHED
    offsets.place(blocks(*[1] * (offsets.MOST_CACHED + 1)))
    assert len(offsets._known) == offsets.CACHED
