"""Memory that is given back on one stream and taken on another is not written too early."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.memory import DeviceMemory, Pool
from dynbatch.memory.stream_order import MANY

N = 100


@pytest.fixture
def pool(cuda):
    return Pool(upstream=DeviceMemory())


@pytest.fixture
def two_streams(cuda):
    return [cuda.cuda.Stream(non_blocking=True) for _ in range(2)]


def copy_of(cuda, array):
    """A copy that the current stream will make."""
    copied = cuda.empty(N, np.float32)
    copied.data.copy_from_device_async(array.data, 4 * N)
    return copied


def test_another_stream_waits_for_what_reads_the_memory_still(cuda, pool, two_streams):
    first, second = two_streams
    with first:
        array = pool.take(N, np.float32)
        array.fill(7)
        first.synchronize()
        copied = copy_of(cuda, array)
        pool.give(array)
    with second:
        other = pool.take(N, np.float32)
        assert other.data.ptr == array.data.ptr
        other.fill(9)
        second.synchronize()
    first.synchronize()
    assert cuda.asnumpy(copied).tolist() == [7] * N


def test_parts_of_what_was_given_back_are_waited_for_too(cuda, pool, two_streams):
    first, second = two_streams
    with first:
        pool.give(pool.take(4 * N, np.float32))  # one stretch that the three will share
        arrays = [pool.take(N, np.float32) for _ in range(3)]
        for number, array in enumerate(arrays):
            array.fill(number)
        first.synchronize()
        copied = [copy_of(cuda, array) for array in arrays]
        for array in arrays:
            pool.give(array)
    with second:
        one = pool.take(3 * N, np.float32)
        assert one.data.ptr <= min(array.data.ptr for array in arrays)
        one.fill(9)
        second.synchronize()
    first.synchronize()
    assert [cuda.asnumpy(copy)[0] for copy in copied] == [0, 1, 2]


def test_one_stream_waits_for_nothing(cuda, pool, monkeypatch):
    monkeypatch.setattr(cuda.cuda.Stream, "wait_event", lambda *_: pytest.fail("a stream waits"))
    for elements in (N, 3 * N, N // 2):
        for _ in range(2 * MANY):
            pool.give(pool.take(elements, np.float32))


def test_what_is_done_is_forgotten(cuda, pool):
    arrays = [pool.take(64 * (k + 1), np.float32) for k in range(4 * MANY)]
    for array in arrays:
        pool.give(array)
        cuda.cuda.Device().synchronize()
    assert len(pool._order._freed) <= MANY


def test_graphs_of_two_streams_compute_what_one_does(cuda, pool, two_streams):
    linear = models.Linear(4, 4, rng=0).to("cuda")
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((length, 4)).astype(np.float32) for length in (5, 3, 8, 2)]

    def outputs(streams):
        found = []
        for number, x in enumerate(xs):
            with streams[number % len(streams)], db.Graph("cuda", pool=pool) as graph:
                y = F.tanh(linear(F.tanh(linear(F.input(graph, x)))))
                found.append(y.device_value)
        return [cuda.asnumpy(each) for each in found]

    with two_streams[0]:
        expected = outputs([cuda.cuda.Stream.null])
    cuda.cuda.Device().synchronize()
    for one, other in zip(expected, outputs(two_streams), strict=True):
        np.testing.assert_array_equal(one, other)
    queue().flush()


def test_memory_is_free_again_where_its_stream_cannot_wait(cuda, pool, monkeypatch):
    pool.give(pool.take(N, np.float32))
    before = pool.used_bytes, pool.reserved_bytes

    def lost(buffer):
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(pool._order, "take", lost)
    with pytest.raises(RuntimeError, match="lost"):
        pool.take(N, np.float32)
    assert (pool.used_bytes, pool.reserved_bytes) == before
    monkeypatch.undo()
    pool.give(pool.take(N, np.float32))
