"""Cuts and joins of an arena, and its requests to the upstream."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory import Arena, HostMemory
from dynbatch.memory.arena import DEVIATIONS, EARLY, LEARNED, Peaks
from tests.marks import exhaustive
from tests.memory.allocators import stack

KIB = 1024


def exact(upstream):
    """An arena whose regions are no larger than was asked for."""
    return Arena(upstream, growth=0.0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_neighbours_are_joined_whatever_order_they_come_back_in(order):
    above, below = stack(exact, HostMemory())
    above.free(above.allocate(3 * KIB))
    buffers = [above.allocate(KIB) for _ in range(3)]
    for which in order:
        above.free(buffers[which])
    assert above.largest_free() == 3 * KIB
    above.allocate(3 * KIB)
    assert below.allocations == 1


def test_a_request_takes_the_smallest_stretch_that_has_room():
    above, below = stack(exact, HostMemory())
    above.free(above.allocate(32 * KIB))
    sizes = [8, 1, 2, 1, 5, 1, 14]
    buffers = [above.allocate(size * KIB) for size in sizes]
    for which in (0, 2, 4):
        above.free(buffers[which])
    found = [above.allocate(size * KIB).address for size in (4, 2, 6)]
    assert found == [buffers[which].address for which in (4, 2, 0)]
    assert below.allocations == 1


def test_neighbours_of_different_regions_stay_apart():
    class Adjacent(HostMemory):
        """Regions whose addresses follow each other, as a driver's may."""

        memory = HostMemory().allocate(64 * KIB)
        used = 0

        def allocate(self, size):
            self.used += size
            return self.memory.part(self.used - size, size)

    above, below = stack(exact, Adjacent())
    buffers = [above.allocate(4 * KIB) for _ in range(2)]
    assert buffers[1].address == buffers[0].address + 4 * KIB
    for buffer in buffers:
        above.free(buffer)
    assert above.largest_free() == 4 * KIB and below.allocations == 2


def test_steps_that_vary_end_in_one_region_that_holds_the_largest():
    above, below = stack(Arena, HostMemory())
    sizes = np.random.default_rng(0).integers(800 * KIB, 1000 * KIB, (1000, 3))
    for step, taken in enumerate(sizes.tolist()):
        for buffer in [above.allocate(size) for size in taken]:
            above.free(buffer)
        if step == 50:
            warm = below.allocations
    assert below.allocations == warm <= 6
    assert above.peak_rounded_bytes < below.rounded_bytes <= 1.25 * above.peak_rounded_bytes
    assert above.largest_free() == below.rounded_bytes


def test_requests_that_never_fit_the_gaps_end_too():
    """The third needs room that is free, but not in one piece."""
    above, below = stack(exact, HostMemory())
    for _ in range(20):
        a, b = above.allocate(8 * KIB), above.allocate(8 * KIB)
        above.free(a)
        c = above.allocate(10 * KIB)
        above.free(b)
        above.free(c)
        before = below.allocations
    assert below.allocations == before <= 6
    assert below.rounded_bytes <= (18 + 10) * KIB


def test_many_small_buffers_need_few_regions():
    above, below = stack(Arena, HostMemory())
    for _ in range(2000):
        above.allocate(KIB)
    assert below.allocations < 80


def test_where_the_limit_leaves_no_room_to_grow_a_region_is_as_large_as_what_is_needed():
    above, below = stack(Arena, HostMemory(), limit_bytes=100 * KIB)
    above.allocate(96 * KIB)
    assert below.rounded_bytes == 96 * KIB
    above.allocate(4 * KIB)
    assert below.rounded_bytes == 100 * KIB


def test_a_step_that_failed_has_room_when_it_is_tried_again():
    above, below = stack(partial(Arena, growth=1 / 8), HostMemory(), limit_bytes=100 * KIB)
    for buffer in [above.allocate(size * KIB) for size in (60, 20)]:
        above.free(buffer)
    first = above.allocate(84 * KIB)
    assert below.rounded_bytes == 90 * KIB
    with pytest.raises(MemoryError):  # six are free in the region, ten below the limit
        above.allocate(14 * KIB)
    above.free(first)
    above.release()
    above.allocate(84 * KIB)
    above.allocate(14 * KIB)
    assert below.rounded_bytes == 98 * KIB


def test_what_was_in_use_once_is_forgotten_when_it_is_released():
    above, below = stack(Arena, HostMemory())
    above.free(above.allocate(1000 * KIB))
    above.release()
    above.allocate(KIB)
    assert below.rounded_bytes < 2 * KIB


def seen(values, growth):
    peaks = Peaks(growth)
    for value in values:
        peaks.see(value)
        peaks.end_step(value)
    return peaks


@given(st.lists(st.integers(1, 10**9), min_size=LEARNED, max_size=LEARNED + 9), st.floats(0, 1))
def test_what_is_expected_lies_so_many_deviations_above_the_mean_within_bounds(values, growth):
    deviation = np.std(values, ddof=1)
    unbounded = np.mean(values) + DEVIATIONS * deviation
    expected = np.clip(unbounded, max(values), (1 + growth) * max(values))
    np.testing.assert_allclose(seen(values, growth).expected(), expected, rtol=1e-6, atol=2)


def test_steps_that_are_all_the_same_need_no_more():
    assert seen([1000] * LEARNED, growth=0.5).expected() == 1000


def test_until_the_spread_is_known_a_little_more_than_the_most_is_expected():
    assert seen([1000] * (LEARNED - 1), growth=0.5).expected() == int(1000 * (1 + EARLY))
    assert seen([1000], growth=0.0).expected() == 1000
    peaks = Peaks(0.5)
    peaks.see(800)
    assert peaks.expected() == 900
    peaks.forget()
    assert peaks.expected() == 0


@pytest.mark.parametrize("runs", [50, exhaustive(200)])
def test_what_48_steps_tell_is_enough_for_a_thousand(runs):
    rng = np.random.default_rng(0)
    lengths = np.clip(np.rint(rng.lognormal(2.9, 0.59, (runs, 1000, 64))), 3, 80).sum(axis=2)
    expected = [seen(steps[:LEARNED].tolist(), 1 / 4).expected() for steps in lengths]
    assert (lengths.max(axis=1) <= expected).all()
    assert np.mean(expected / lengths.max(axis=1)) < 1.16


def test_a_step_of_many_requests_that_outgrows_all_before_it_has_few_regions():
    above, below = stack(Arena, HostMemory())
    for _ in range(2 * LEARNED):
        above.free(above.allocate(4 * KIB))
    before = below.allocations
    for _ in range(5_000):
        above.allocate(KIB)
    assert below.allocations - before <= 60  # each an eighth larger: log(1250) / log(1.125)
