import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.errors import OutOfMemory
from dynbatch.memory import Pool
from dynbatch.memory.pool import size_class


@given(st.integers(1, 1 << 40))
def test_a_size_class_wastes_at_most_an_eighth(size):
    rounded = size_class(size)
    assert size <= rounded
    assert rounded <= max(1024, size * 9 / 8)
    assert size_class(rounded) == rounded


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_are_aligned_and_large_enough(dtype):
    pool = Pool()
    for elements in (0, 1, 1000, 12345):
        array = pool.take(elements, dtype)
        assert array.dtype == dtype and array.ndim == 1 and array.size >= elements
        assert array.ctypes.data % 64 == 0


def test_a_buffer_given_back_is_taken_again():
    pool = Pool()
    first = pool.take(1000, np.float32)
    pool.give(first)
    again = pool.take(1010, np.float32)  # of the same class
    assert again.ctypes.data == first.ctypes.data
    assert pool.upstream_allocations == 1


def test_used_reserved_and_peak_bytes_count_size_classes():
    pool = Pool()
    a, b = pool.take(1000, np.float64), pool.take(3000, np.float32)
    sizes = size_class(8000), size_class(12000)
    assert (pool.used_bytes, pool.reserved_bytes) == (sum(sizes), sum(sizes))
    pool.give(a)
    assert (pool.used_bytes, pool.reserved_bytes) == (sizes[1], sum(sizes))
    pool.release()
    assert (pool.used_bytes, pool.reserved_bytes) == (sizes[1], sizes[1])
    pool.give(b)
    assert (pool.used_bytes, pool.peak_bytes) == (0, sum(sizes))


def test_a_free_buffer_serves_requests_down_to_half_its_size():
    pool = Pool()
    for size in (8000, 6000, 4100, 8000, 3000):
        pool.give(pool.take(size, np.uint8))
    assert pool.upstream_allocations == 2  # the last is less than half of the first
    assert pool.reserved_bytes == size_class(8000) + size_class(3000)


def test_unused_buffers_make_room_before_memory_is_out():
    pool = Pool(limit_bytes=10 * 1024)
    pool.give(pool.take(8 * 1024, np.uint8))
    array = pool.take(3 * 1024, np.uint8)  # fits only without the buffer of 8 KiB
    assert pool.reserved_bytes == size_class(array.nbytes)


def test_a_limit_raises_and_leaves_the_pool_as_it_was():
    pool = Pool(limit_bytes=4096)
    kept = pool.take(2048, np.uint8)
    with pytest.raises(OutOfMemory, match="limit 4096") as caught:
        pool.take(4096, np.uint8)
    assert isinstance(caught.value, MemoryError)
    assert pool.used_bytes == 2048
    pool.give(kept)
    assert pool.take(4096, np.uint8).size == 4096


def test_a_system_without_memory_raises_out_of_memory(monkeypatch):
    def refuse(*args):
        raise MemoryError

    pool = Pool()
    monkeypatch.setattr("dynbatch.memory.upstream.np.empty", refuse)
    with pytest.raises(OutOfMemory, match="the system has no"):
        pool.take(10, np.float32)
    assert pool.used_bytes == 0


def test_threads_may_share_a_pool():
    pool = Pool()

    def work():
        for size in range(1, 200):
            pool.give(pool.take(size * 100, np.float32))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.used_bytes == 0
