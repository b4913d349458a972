"""Counted against sums made by hand."""

import pytest

from dynbatch.memory import Arena, HostMemory, Limit, Statistics
from dynbatch.memory.resource import statistics_of
from dynbatch.testing import FailingMemory
from tests.memory.allocators import stack

KIB = 1024


def test_bytes_and_calls_are_counted():
    counted = Statistics(FailingMemory({2}))
    a = counted.allocate(100)
    with pytest.raises(MemoryError):
        counted.allocate(50)
    b = counted.allocate(200)
    counted.free(a)
    assert (counted.requested_bytes, counted.peak_requested_bytes) == (200, 300)
    assert (counted.allocations, counted.frees, counted.failures) == (2, 1, 1)
    counted.free(b)
    assert (counted.requested_bytes, counted.rounded_bytes, counted.frees) == (0, 0, 2)


def test_waste_is_split_into_what_nobody_asked_for_and_what_nobody_uses():
    above, below = stack(lambda upstream: Arena(upstream, growth=0.0), HostMemory())
    above.free(above.allocate(16 * KIB))
    buffers = [above.allocate(size) for size in (4000, 1 * KIB, 1000, 2 * KIB)]
    above.free(buffers[1])
    found = statistics_of(above, below)
    assert found.requested_bytes == 4000 + 1000 + 2 * KIB
    assert found.rounded_bytes == 7 * KIB
    assert found.reserved_bytes == 16 * KIB
    assert found.internal_bytes == 96 + 24
    assert found.free_bytes == 9 * KIB
    assert found.largest_free_bytes == 8 * KIB
    assert found.scattered_bytes == 1 * KIB
    assert found.peak_requested_bytes == 16 * KIB and found.peak_reserved_bytes == 16 * KIB
    assert (found.allocations, found.frees) == (5, 2)
    assert (found.upstream_allocations, found.upstream_frees) == (1, 0)


def test_a_limit_counts_what_is_allocated_and_can_be_used_up_exactly():
    limit = Limit(HostMemory(), 100)
    a = limit.allocate(60)
    limit.allocate(40)
    with pytest.raises(MemoryError, match="1 bytes more than 100"):
        limit.allocate(1)
    limit.free(a)
    assert limit.allocated_bytes == 40
    assert limit.allocate(60).size == 60
