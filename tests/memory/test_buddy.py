"""Blocks of powers of two: exact splits and joins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory import Buddy, HostMemory
from dynbatch.memory.buddy import order_of
from tests.memory.allocators import stack


@given(st.integers(1, 1 << 40))
def test_the_order_is_that_of_the_smallest_power_of_two_with_room(size):
    order = order_of(size)
    assert size <= 1 << order and (order == 8 or size > 1 << (order - 1))


def test_a_block_is_halved_until_it_fits_and_buddies_join_again():
    above, below = stack(Buddy, HostMemory())
    above.free(above.allocate(4096))
    small = above.allocate(200)
    assert small.size == 256
    assert above.largest_free() == 2048  # 2048, 1024, 512 and 256 are left
    rest = [above.allocate(size) for size in (2048, 1024, 512, 256)]
    begin = min(buffer.address for buffer in [small, *rest])
    assert sorted(buffer.address - begin for buffer in [small, *rest]) == [
        0, 256, 512, 1024, 2048,
    ]  # fmt: skip
    assert all((buffer.address - begin) % buffer.size == 0 for buffer in rest)
    above.free(rest[3])
    assert above.largest_free() == 256
    above.free(small)  # with its buddy 512, not yet more: its own buddy is in use
    assert above.largest_free() == 512
    for buffer in rest[:3]:
        above.free(buffer)
    assert above.largest_free() == 4096
    assert below.allocations == 1


def test_blocks_that_touch_but_are_no_buddies_do_not_join():
    above, _ = stack(Buddy, HostMemory())
    above.free(above.allocate(1024))
    quarters = sorted([above.allocate(256) for _ in range(4)], key=lambda buffer: buffer.address)
    above.free(quarters[1])
    above.free(quarters[2])
    assert above.largest_free() == 256


@pytest.mark.parametrize("size", [257, 1025, 5000])
def test_a_request_just_above_a_power_of_two_wastes_almost_half(size):
    above, _ = stack(Buddy, HostMemory())
    buffer = above.allocate(size)
    assert buffer.size < 2 * size and buffer.size & (buffer.size - 1) == 0
