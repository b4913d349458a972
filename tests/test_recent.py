import os
import threading

import pytest

from dynbatch.kernels.runtime import parallel
from dynbatch.recent import Recent, free_at_fork
from tests.forks import in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_a_child_finds_a_lock_free_and_what_it_guards_whole():
    lock = free_at_fork(threading.Lock())
    taken, parts = threading.Event(), []

    def change():
        with lock:
            parts.append(1)
            taken.set()
            threading.Event().wait(0.02)
            parts.append(2)

    thread = threading.Thread(target=change)
    thread.start()
    taken.wait()
    assert in_child(lambda: lock.acquire(timeout=1) and parts == [1, 2])
    thread.join()


def test_a_child_has_workers_of_its_own(same_threads):
    def meet():
        meeting = threading.Barrier(2, timeout=1)
        parallel.run([meeting.wait, meeting.wait])
        return True

    parallel.set_num_threads(2)
    assert meet()
    assert in_child(meet)


def test_the_value_that_is_entered_first_is_used_by_all():
    table = Recent(1)
    assert [table.enter("key", value) for value in (1, 2)] == [1, 1]
    assert table.enter("other", 3) == 3
    assert table.find("key") is None
