"""Places of blocks that were placed before."""

from unittest.mock import patch

from dynbatch.memory import offsets


def columns(*sizes):
    """Sizes, first and last stages, and alignments of some blocks."""
    count = range(len(sizes))
    return sizes, list(count), [k + 1 for k in count], [1 + k % 3 for k in count]


def test_the_same_blocks_are_planned_once():
    offsets._known.clear()
    first, again, other = columns(5, 7, 3, 9), columns(5, 7, 3, 9), columns(5, 7, 3, 8)
    with patch.object(offsets, "plan_offsets", wraps=offsets.plan_offsets) as planned:
        placed = offsets.assign_offsets(*first)
        assert offsets.assign_offsets(*again) == placed
        assert planned.call_count == 1
        offsets.assign_offsets(*other)
        assert planned.call_count == 2
    total, places = placed
    assert total >= 12 and len(places) == 4


def test_only_so_many_are_remembered():
    offsets._known.clear()
    for size in range(1, offsets.CACHED + 20):
        offsets.assign_offsets(*columns(size, size))
    assert len(offsets._known) == offsets.CACHED
    offsets.assign_offsets(*columns(*[1] * (offsets.MOST_CACHED + 1)))
    assert len(offsets._known) == offsets.CACHED
