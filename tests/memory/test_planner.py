from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory import Interval, live_peak, plan_offsets, planner
from dynbatch.memory.planner import place_in_order
from tests.poison import assert_disjoint


@st.composite
def intervals(draw):
    found = []
    for _ in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        found.append(
            Interval(
                size=draw(st.one_of(st.just(0), st.integers(1, 50))),
                first=first,
                last=draw(st.one_of(st.just(first), st.integers(first, 12), st.just(1 << 60))),
                alignment=draw(st.sampled_from([1, 1, 3, 7, 16])),
            )
        )
    return found


@pytest.mark.parametrize("most_by_size", [0, 2000])
@given(blocks=intervals())
def test_no_two_blocks_alive_at_once_share_memory(blocks, most_by_size):
    with patch.object(planner, "MOST_BY_SIZE", most_by_size):
        total = plan_offsets(blocks)
    assert_disjoint(blocks)
    assert all(0 <= block.offset and block.offset + block.size <= total for block in blocks)
    assert all(block.offset % block.alignment == 0 for block in blocks)
    assert total >= live_peak(blocks)


@given(intervals())
def test_the_same_intervals_get_the_same_places(blocks):
    copies = [Interval(b.size, b.first, b.last, b.alignment) for b in blocks]
    assert plan_offsets(blocks) == plan_offsets(copies)
    assert [b.offset for b in blocks] == [b.offset for b in copies]


@given(intervals())
def test_the_live_peak_is_the_largest_sum_at_a_stage(blocks):
    sums = [sum(b.size for b in blocks if b.first <= t <= b.last) for t in range(14)]
    assert live_peak(blocks) == max(sums)


def test_blocks_of_different_times_share_memory():
    blocks = [Interval(10, 0, 1), Interval(10, 2, 3), Interval(4, 1, 2)]
    assert plan_offsets(blocks) == 14


def test_a_block_goes_into_the_tightest_gap():
    # At time 1 the gaps are 6 (between the first two) and 3 (between the next): 3 fits 3.
    blocks = [
        Interval(9, 0, 1), Interval(6, 0, 0), Interval(8, 0, 1), Interval(3, 0, 0),
        Interval(7, 0, 1), Interval(3, 1, 1),
    ]  # fmt: skip
    plan_offsets(blocks)
    assert_disjoint(blocks)
    assert plan_offsets(blocks) == live_peak(blocks)


def test_many_blocks_of_a_chain_are_placed_in_no_time_and_in_little_room():
    """Comparing each with all others took 20 minutes for so many."""
    blocks = [Interval(10 + k % 7, k, k + 1, 1 + k % 3) for k in range(100_000)]
    assert plan_offsets(blocks) <= 3 * live_peak(blocks)


def test_nothing_needs_nothing():
    assert plan_offsets([]) == 0
    assert live_peak([]) == 0


def test_another_order_is_taken_where_the_largest_first_leaves_gaps():
    generator = np.random.default_rng(0)
    better = 0
    for _ in range(200):
        firsts = generator.integers(0, 8, 12)
        blocks = [
            Interval(int(size), int(first), int(first + length))
            for size, first, length in zip(
                generator.integers(1, 40, 12), firsts, generator.integers(0, 5, 12), strict=True
            )
        ]
        alone = place_in_order(sorted(blocks, key=lambda block: -block.size))
        total = plan_offsets(blocks)
        assert_disjoint(blocks)
        assert total == max(block.offset + block.size for block in blocks)
        assert live_peak(blocks) <= total <= alone
        better += total < alone
    assert better > 20


def test_many_blocks_are_placed_as_few_are(monkeypatch):
    generator = np.random.default_rng(0)
    for _ in range(10):
        count = int(generator.integers(1, 120))
        sizes, firsts, lengths = generator.integers(0, (40, 30, 12), (count, 3)).T.tolist()
        blocks = [
            Interval(size, first, first + length, 1 + size % 5)
            for size, first, length in zip(sizes, firsts, lengths, strict=True)
        ]
        outcomes = []
        for many in (0, count + 1):
            monkeypatch.setattr(planner, "MANY", many)
            total = place_in_order(blocks)
            outcomes.append((total, [block.offset for block in blocks]))
        assert outcomes[0] == outcomes[1]


def columns(*sizes):
    """Sizes, first and last stages, and alignments of some blocks."""
    count = range(len(sizes))
    return sizes, list(count), [k + 1 for k in count], [1 + k % 3 for k in count]


def test_the_same_blocks_are_planned_once():
    planner._known.clear()
    first, again, other = columns(5, 7, 3, 9), columns(5, 7, 3, 9), columns(5, 7, 3, 8)
    with patch.object(planner, "plan_offsets", wraps=planner.plan_offsets) as planned:
        placed = planner.assign_offsets(*first)
        assert planner.assign_offsets(*again) == placed
        assert planned.call_count == 1
        planner.assign_offsets(*other)
        assert planned.call_count == 2
    total, places = placed
    assert total >= 12 and len(places) == 4


def test_only_so_many_are_remembered():
    planner._known.clear()
    for size in range(1, planner.CACHED + 20):
        planner.assign_offsets(*columns(size, size))
    assert len(planner._known) == planner.CACHED
    planner.assign_offsets(*columns(*[1] * (planner.MOST_CACHED + 1)))
    assert len(planner._known) == planner.CACHED
