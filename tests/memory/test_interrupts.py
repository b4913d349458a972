"""Ctrl-C at any line of a pool loses no memory, lends none twice, and leaves its counts right."""

import gc
from functools import partial

import numpy as np
import pytest

from dynbatch.memory import GivenMemory, Pool
from tests.interruptions import broken_off
from tests.marks import quick
from tests.memory.allocators import ALLOCATORS

FILES = tuple(
    f"dynbatch/memory/{name}.py"
    for name in ("pool", "arena", "buddy", "size_classes", "resource", "upstream")
)
SIZES = (3000, 200, 9000, 200, 60_000, 1, 3000)


class Source:
    """An allocator of somebody else, which counts what it has given."""

    def __init__(self):
        self.given = {}

    def allocate(self, size):
        memory = np.empty(size, np.uint8)
        self.given[id(memory)] = memory
        return memory

    def deallocate(self, memory, size):
        assert size == memory.size
        del self.given[id(memory)]


def work(pool, held):
    """Take and give in an order in which stretches are split and joined, and regions replaced."""
    for size in SIZES:
        held.append(pool.take(size, np.uint8))
    for place in (1, 2, 0):
        pool.give(held.pop(place))
    held.append(pool.take(2 * sum(SIZES), np.uint8))
    pool.give(held.pop(0))
    pool.release()
    pool.give(held.pop())


def require_whole(pool, held, source):
    for number, array in enumerate(held):
        array.fill(number)
    assert [set(array.tolist()) for array in held] == [{k} for k in range(len(held))]  # apart
    statistics = pool.statistics()
    assert statistics.rounded_bytes == sum([array.nbytes for array in held])
    assert statistics.allocations - statistics.frees == len(held)
    assert statistics.upstream_allocations - statistics.upstream_frees == len(source.given)
    assert sum([size for sizes in pool.on_loan().values() for size in sizes]) == pool.used_bytes


@pytest.mark.parametrize("name", quick(["arena"], ALLOCATORS))
def test_a_pool_is_whole_after_an_interrupt_at_any_line(name):
    source, held = Source(), []
    upstream = GivenMemory(source.allocate, source.deallocate)
    pool = Pool(1 << 30, upstream, ALLOCATORS[name])
    count = 0
    for count, (_, error) in enumerate(broken_off(partial(work, pool, held), FILES, None), 1):
        assert isinstance(error, KeyboardInterrupt)
        require_whole(pool, held, source)
        while held and count % 3:  # else what is on loan stays
            pool.give(held.pop())
    assert count > 300
    while held:
        pool.give(held.pop())
    pool.release()
    require_whole(pool, held, source)
    assert pool.reserved_bytes == 0 and not source.given


@pytest.mark.usefixtures("young_heap")
def test_an_array_that_is_gone_without_give_is_no_longer_on_loan():
    pool = Pool()
    array = pool.take(1000, np.float32, "a table")
    part = array[10:20]
    del array
    gc.collect()
    assert pool.on_loan() == {"a table": [4096]}  # somebody may read the part
    del part
    assert pool.on_loan() == {}
    assert pool.used_bytes == 0
