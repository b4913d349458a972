"""Duties of every allocator, whatever its method."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory import GivenMemory, HostMemory
from dynbatch.testing import FailingMemory
from tests.memory.allocators import ALLOCATORS, stack

SIZES = st.one_of(st.integers(1, 600), st.sampled_from([1024, 4096, 5000, 70_000]))
# An integer frees one of the buffers in use.
OPERATIONS = st.lists(st.one_of(SIZES.map(lambda size: ("take", size)),
                                st.integers(0, 99).map(lambda which: ("give", which))),
                      max_size=60)  # fmt: skip


def fill(buffer, number):
    buffer.array(np.uint8)[:] = number % 251


def check(buffer, number):
    assert (buffer.array(np.uint8) == number % 251).all(), "two buffers share memory"


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("limit", [None, 100_000])
@given(operations=OPERATIONS)
def test_buffers_are_apart_aligned_and_counted(name, limit, operations):
    above, below = stack(ALLOCATORS[name], HostMemory(), limit)
    alive = []
    for number, (what, value) in enumerate(operations):
        if what == "take":
            try:
                buffer = above.allocate(value)
            except MemoryError:
                assert limit is not None
                continue
            assert buffer.size >= value and buffer.address % 64 == 0
            fill(buffer, number)
            alive.append((buffer, value, number))
        elif alive:
            buffer, _, filled = alive.pop(value % len(alive))
            check(buffer, filled)
            above.free(buffer)
        assert above.requested_bytes == sum(size for _, size, _ in alive)
        assert above.rounded_bytes == sum(buffer.size for buffer, _, _ in alive)
        assert above.rounded_bytes + above.largest_free() <= below.rounded_bytes
        assert limit is None or below.rounded_bytes <= limit
    for buffer, _, filled in alive:
        check(buffer, filled)
        above.free(buffer)
    assert (above.requested_bytes, above.rounded_bytes) == (0, 0)
    above.release()
    assert below.rounded_bytes == 0 and below.frees == below.allocations
    assert above.largest_free() == 0


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_request_like_one_given_back_needs_no_upstream(name):
    above, below = stack(ALLOCATORS[name], HostMemory())
    for _ in range(3):
        buffers = [above.allocate(size) for size in (5000, 300, 70_000)]
        for buffer in buffers:
            above.free(buffer)
    before = below.allocations
    buffers = [above.allocate(size) for size in (300, 70_000, 5000)]
    assert below.allocations == before


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("fails", range(1, 12))
def test_an_upstream_that_fails_leaves_an_allocator_as_it_was(name, fails):
    memory = FailingMemory(range(fails, 1 << 60))
    above, below = stack(ALLOCATORS[name], memory)
    alive = []
    for size in (1000, 3000, 9000, 27_000, 81_000, 200, 243_000):
        try:
            alive.append((above.allocate(size), size))
        except MemoryError:
            break
        fill(alive[-1][0], size)
    else:
        assert memory.calls < fails
    assert above.requested_bytes == sum(size for _, size in alive)
    memory.fails = ()
    alive.append((above.allocate(243_000), 243_000))
    fill(alive[-1][0], 243_000)
    for buffer, size in alive:
        check(buffer, size)
        above.free(buffer)
    above.release()
    assert (above.rounded_bytes, below.rounded_bytes) == (0, 0)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_one_failure_is_none_where_enough_is_held_unused(name):
    above, below = stack(ALLOCATORS[name], HostMemory(), limit_bytes=100_000)
    above.free(above.allocate(60_000))
    buffer = above.allocate(65_536)  # fits the limit only without the first
    assert buffer.size >= 65_536 and below.frees == below.allocations - 1


# Upstreams ----------------------------------------------------------------------------------------


def test_any_allocator_of_the_host_can_be_given_with_what_frees_it():
    held = {}

    def allocate(size):
        memory = np.empty(size, np.uint8)
        held[memory.ctypes.data] = size
        return memory

    def deallocate(memory, size):
        assert held.pop(memory.ctypes.data) == size

    memory = GivenMemory(allocate, deallocate)
    buffers = [memory.allocate(size) for size in (1, 100, 4096)]
    assert [buffer.size for buffer in buffers] == [1, 100, 4096]
    assert all(buffer.address % 64 == 0 for buffer in buffers) and len(held) == 3
    for number, buffer in enumerate(buffers):
        fill(buffer, number)
    for number, buffer in enumerate(buffers):
        check(buffer, number)
        memory.free(buffer)
    assert not held


def test_what_is_no_memory_is_refused():
    with pytest.raises(TypeError, match="allocate returned str"):
        GivenMemory(lambda size: "x" * size).allocate(10)


class OutOfMemoryError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ],
)
def test_an_allocator_that_has_no_memory_may_say_so_in_its_own_words(error):
    def allocate(size):
        raise error

    with pytest.raises(MemoryError, match=r"Tried to allocate|OUT_OF_MEMORY"):
        GivenMemory(allocate).allocate(10)
