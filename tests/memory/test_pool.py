import threading

import numpy as np
import pytest

from dynbatch.errors import OutOfMemory
from dynbatch.memory import HostMemory, Pool
from dynbatch.memory import pool as pools
from dynbatch.testing import FailingMemory
from tests.memory.allocators import ALLOCATORS
from tests.messages import raised


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_are_aligned_and_large_enough(dtype):
    pool = Pool()
    for elements in (0, 1, 1000, 12345):
        array = pool.take(elements, dtype)
        assert array.dtype == dtype and array.ndim == 1 and array.size >= elements
        assert array.ctypes.data % 64 == 0


def test_memory_given_back_is_taken_again():
    pool = Pool()
    first = pool.take(1000, np.float32)
    pool.give(first)
    again = pool.take(1000, np.float32)
    assert again.ctypes.data == first.ctypes.data
    assert pool.upstream_allocations == 1


def test_used_reserved_and_peak_bytes_are_those_of_the_arrays():
    pool = Pool()
    a, b = pool.take(1000, np.float64), pool.take(3000, np.float32)
    assert pool.used_bytes == a.nbytes + b.nbytes == 8192 + 12032
    assert pool.reserved_bytes >= pool.used_bytes
    pool.give(a)
    assert pool.used_bytes == b.nbytes
    pool.give(b)
    assert (pool.used_bytes, pool.peak_bytes) == (0, 8192 + 12032)
    pool.release()
    assert pool.reserved_bytes == 0
    found = pool.statistics()
    assert (found.peak_requested_bytes, found.allocations, found.frees) == (20_000, 2, 2)


def test_what_is_unused_makes_room_before_memory_is_out():
    pool = Pool(limit_bytes=10 * 1024)
    pool.give(pool.take(4 * 1024, np.uint8))
    array = pool.take(7 * 1024, np.uint8)  # fits only without the 4 KiB
    assert array.nbytes <= pool.reserved_bytes <= 10 * 1024
    assert pool.statistics().upstream_frees == 1


def test_a_failure_of_the_upstream_is_tried_again_without_what_is_unused():
    memory = FailingMemory()
    pool = Pool(upstream=memory, allocator=ALLOCATORS["size classes"])
    pool.give(pool.take(4096, np.uint8))
    memory.fails = {2}
    array = pool.take(65536, np.uint8)
    assert pool.reserved_bytes == array.nbytes and memory.calls == 3


def test_a_limit_raises_and_leaves_the_pool_as_it_was():
    pool = Pool(limit_bytes=4096)
    kept = pool.take(2048, np.uint8)
    with pytest.raises(OutOfMemory, match="limit of 4,096 bytes") as caught:
        pool.take(4096, np.uint8)
    assert isinstance(caught.value, MemoryError)
    assert pool.used_bytes == 2048
    pool.give(kept)
    assert pool.take(4096, np.uint8).size == 4096
    pool.limit_bytes = 6144
    assert pool.take(2048, np.uint8).size == 2048


@pytest.mark.parametrize("limit", [0, -1, True, "12 bananas", float("nan")])
def test_a_limit_is_a_number_of_bytes_above_0(limit):
    pool = Pool(limit_bytes="4 KiB")
    assert pool.limit_bytes == 4096
    with pytest.raises(ValueError, match="is not a number of bytes"):
        Pool(limit_bytes=limit)
    with pytest.raises(ValueError, match="is not a number of bytes"):
        pool.limit_bytes = limit
    assert pool.limit_bytes == 4096


def test_a_unit_without_its_b_is_told_with_it():
    with pytest.raises(ValueError, match='fix:  limit_bytes="20MB"'):
        Pool(limit_bytes="20M")


def test_a_system_without_memory_raises_out_of_memory(monkeypatch):
    def refuse(*args):
        raise MemoryError

    pool = Pool()
    monkeypatch.setattr("dynbatch.memory.upstream.np.empty", refuse)
    with pytest.raises(OutOfMemory, match="the system has no"):
        pool.take(10, np.float32)
    assert pool.used_bytes == 0


def test_an_array_that_is_not_on_loan_cannot_be_given():
    pool = Pool()
    array = pool.take(10, np.float32)
    pool.give(array)
    for other in (array, np.zeros(10)):
        with pytest.raises(ValueError, match="not on loan"):
            pool.give(other)
    assert pool.used_bytes == 0


# What errors say ----------------------------------------------------------------------------------


def test_an_error_says_what_was_asked_what_there_is_and_who_has_it():
    pool = Pool(limit_bytes=100_000)
    wanted = [(1024, "kept values"), (20_480, "arena"), (2048, "kept values"), (4096, "")]
    held = [pool.take(size, np.uint8, label) for size, label in wanted]
    message = raised(
        OutOfMemory,
        lambda: pool.take(25_000, np.float32, "an arena of 7 nodes"),
        "pool: the limit of 100,000 bytes has no 100,000 bytes left for an arena of 7 nodes.\n",
        f"in use: 27,648 bytes, of {pool.reserved_bytes:,} reserved, limit 100,000\n",
        "arena: 20,480\n",
        "without a label: 4,096\n",
        "kept values: 3,072 in 2 arrays, the largest 2,048\n",
        "fix:  use a smaller mini-batch, or raise the limit",
    )
    assert "others" not in message
    assert list(pool.on_loan()) == ["arena", "", "kept values"]
    assert pool.on_loan()["kept values"] == [2048, 1024]
    for array in held:
        pool.give(array)
    assert pool.on_loan() == {}


def test_of_many_labels_an_error_names_the_largest_and_the_sum_of_the_others():
    memory = FailingMemory()
    pool = Pool(upstream=memory)
    held = [
        pool.take(1024 * (number + 1), np.uint8, f"label {number}")
        for number in range(pools.NAMED + 3)
    ]
    memory.fails = range(1, 1 << 60)
    message = raised(
        OutOfMemory,
        lambda: pool.take(1 << 20, np.uint8),
        "the system has no 1,048,576 bytes left.\n",
        "label 7: 8,192\n",
        "label 3: 4,096\n",
        "others: 6,144 in 3 arrays\n",
        "fix:  use a smaller mini-batch",
    )
    assert "limit" not in message
    assert len(pool.on_loan()) == len(held)


def test_threads_may_share_a_pool():
    pool = Pool()

    def work(number):
        for size in range(1, 200):
            array = pool.take(size * 100, np.float32)
            array[:] = number
            assert (array == number).all()
            pool.give(array)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.used_bytes == 0
    assert pool.statistics().allocations == pool.statistics().frees == 4 * 199


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_pool_of_any_allocator_gives_all_back(name):
    memory = FailingMemory(upstream=HostMemory())
    pool = Pool(upstream=memory, allocator=ALLOCATORS[name])
    arrays = [pool.take(size, np.float64) for size in (10, 10_000, 300)]
    for array in arrays:
        pool.give(array)
    pool.release()
    found = pool.statistics()
    assert found.reserved_bytes == 0 and found.upstream_allocations == found.upstream_frees > 0
