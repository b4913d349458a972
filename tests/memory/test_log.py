"""Logs and what replaying them finds."""

import io
from collections import Counter

import pytest

from dynbatch.errors import DataError
from dynbatch.memory import Arena, Event, HostMemory, Logging, Pool, SizeClasses, read_log, replay
from dynbatch.testing import FailingMemory
from tests.memory.allocators import ALLOCATORS

RMM = """Thread,Time,Action,Pointer,Size,Stream
2342727,15:47:02.841961,allocate,0x10012400000,1048576,0
2342727,15:47:02.841970,allocate failure,(nil),99999999999,0
2342727,15:47:02.841977,free,0x10012400000,1048576,0
"""


def test_what_a_pool_did_is_read_back():
    file = io.StringIO()
    pool = Pool(allocator=lambda upstream: Logging(Arena(upstream), file))
    a, b = pool.take(10, "float32"), pool.take(20, "float64")
    pool.give(a)
    pool.give(b)
    events = read_log(file.getvalue().splitlines())
    assert [(e.is_allocation, e.size) for e in events] == [
        (True, 40), (True, 160), (False, 40), (False, 160),
    ]  # fmt: skip
    assert [e.address for e in events] == [a.ctypes.data, b.ctypes.data] * 2


def test_a_failure_is_written_and_not_replayed():
    file = io.StringIO()
    memory = Logging(FailingMemory({1}), file)
    with pytest.raises(MemoryError):
        memory.allocate(77)
    memory.allocate(5)
    assert ",allocate failure,0x0,77,0\n" in file.getvalue()
    assert [event.size for event in read_log(file.getvalue().splitlines())] == [5]


def test_a_log_of_rmm_is_read():
    found = read_log(RMM.splitlines())
    assert found == [Event(True, 0x10012400000, 1 << 20), Event(False, 0x10012400000, 1 << 20)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is not 'Thread,"),
        ("a,b\n", "line 1 is not 'Thread,"),
        (RMM + "1,2,allocate,0x5\n", "line 5 is '1,2,allocate,0x5'"),
        (RMM + "1,2,borrow,0x5,6,0\n", "line 5 is '1,2,borrow"),
        (RMM + "1,2,free,0xq,6,0\n", "line 5 is '1,2,free,0xq"),
    ],
)
def test_what_is_no_log_is_named(text, message):
    with pytest.raises(DataError, match=message):
        read_log(text.splitlines())


def test_a_replay_counts_bytes_at_the_peak_and_at_the_end():
    events = [Event(True, 1, 10_000), Event(True, 2, 5_000), Event(False, 1, 10_000),
              Event(True, 3, 3_000), Event(False, 99, 7)]  # fmt: skip
    found = replay(events, lambda upstream: Arena(upstream, growth=0.0))
    assert found.at_peak.requested_bytes == 15_000
    assert found.at_peak.reserved_bytes == 10_240 + 5_120
    assert found.at_peak.internal_bytes == 240 + 120 and found.at_peak.free_bytes == 0
    assert found.end.requested_bytes == 8_000 and found.end.rounded_bytes == 5_120 + 3_072
    assert found.overhead == 15_360 / 15_000
    assert (found.end.upstream_allocations, found.upstream_events) == (2, (0, 1))


def test_a_replay_gives_all_back():
    memory = Counted()
    replay([Event(True, 1, 100), Event(True, 2, 100)], SizeClasses, memory)
    assert memory.alive == Counter()


class Counted(HostMemory):
    """Knows what is allocated."""

    def __init__(self):
        self.alive = Counter()

    def allocate(self, size):
        buffer = super().allocate(size)
        self.alive[buffer.address] += 1
        return buffer

    def free(self, buffer):
        self.alive[buffer.address] -= 1
        self.alive += Counter()


@pytest.mark.parametrize("name", ALLOCATORS)
def test_replaying_what_was_recorded_gives_the_same_statistics(name):
    file = io.StringIO()
    allocator = ALLOCATORS[name]
    pool = Pool(allocator=lambda upstream: Logging(allocator(upstream), file))
    arrays = [pool.take(size, "float32") for size in (3000, 100, 7000, 20)]
    for which in (2, 0, 1, 3):
        pool.give(arrays[which])
        pool.give(pool.take(500 * which, "float32"))
    found = replay(read_log(file.getvalue().splitlines()), allocator)
    assert found.end == pool.statistics()
