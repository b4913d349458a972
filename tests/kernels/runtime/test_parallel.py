import os
import signal
import threading
import time

import numpy as np
import pytest

from dynbatch.errors import ArgumentError
from dynbatch.kernels.runtime import openblas, parallel
from dynbatch.kernels.runtime.workers import Helper
from tests.forks import in_child
from tests.interruptions import broken_off


@pytest.fixture(autouse=True)
def two_threads():
    before = parallel.num_threads()
    parallel.set_num_threads(2)
    yield
    parallel.set_num_threads(before)


def test_every_task_runs_once():
    done = []
    parallel.run([lambda k=k: done.append(k) for k in range(7)])
    assert sorted(done) == list(range(7))


def test_two_tasks_run_side_by_side():
    meeting = threading.Barrier(2, timeout=10)
    parallel.run([meeting.wait, meeting.wait])  # each waits for the other


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_exception_in_order_of_the_tasks_is_raised(threads):
    parallel.set_num_threads(threads)

    def fail(name):
        raise KeyError(name)

    with pytest.raises(KeyError, match="first"):
        parallel.run([lambda: None, lambda: fail("first"), lambda: fail("second")])


def test_an_exception_is_raised_only_when_every_task_has_ended():
    ended, begun = [], threading.Event()

    def slow():
        begun.set()
        time.sleep(0.05)
        ended.append(True)

    def fail():
        begun.wait(10)
        raise KeyError

    with pytest.raises(KeyError):
        parallel.run([fail, slow])
    assert ended


def test_ctrl_c_is_raised_only_when_every_task_has_ended():
    ended, begun = [], threading.Event()

    def interrupt_the_caller():
        begun.set()
        time.sleep(0.05)  # the caller has ended its own task by now, and waits
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        parallel.run([begun.wait, interrupt_the_caller])
    assert ended


def test_ctrl_c_at_the_moment_when_a_helper_ends_is_not_waited_for_twice():
    helper = Helper(lambda: None)
    helper()
    ended = helper._ended

    class Interrupted:  # the lock is taken, and then the interrupt is noticed
        def acquire(self):
            assert ended.acquire(blocking=False)
            raise KeyboardInterrupt

    helper._ended = Interrupted()
    helper._has_ended = False
    with pytest.raises(KeyboardInterrupt):
        helper.finish()
    helper._has_ended = True
    helper.finish()
    unused = Helper(lambda: pytest.fail("it was given up"))
    unused.finish()
    unused.finish()
    unused()


def test_a_task_does_not_start_threads_of_its_own():
    seen = []
    parallel.run([lambda: seen.append(parallel.available())] * 2)
    assert seen == [1, 1]
    assert parallel.available() == 2


def test_warnings_are_off_in_the_workers_where_they_are_off_for_the_caller():
    meeting = threading.Barrier(2, timeout=10)

    def divide():
        meeting.wait()  # so that one of the two runs in a worker
        np.divide(np.ones(3), np.zeros(3))

    with np.errstate(divide="ignore"):
        parallel.run([divide, divide])
    with pytest.raises(RuntimeWarning):
        parallel.run([divide, divide])


def test_serial_sees_one_thread():
    with parallel.serial():
        assert parallel.available() == 1
        assert len(parallel.shards(100)) == 1


def test_serial_that_is_interrupted_at_any_line_gives_the_threads_back():
    def block():
        with parallel.serial():
            pass

    files = ("runtime/parallel.py", "contextlib.py")
    left = [(place, parallel.available()) for place, _ in broken_off(block, files)]
    assert len(left) > 4 and {count for _, count in left} == {2}, left


@pytest.mark.parametrize(
    ("count", "least", "expected"),
    [
        (10, 1, [(0, 5), (5, 10)]),
        (3, 2, [(0, 3)]),
        (0, 1, [(0, 0)]),
        (1, 1, [(0, 1)]),
        (5, 2, [(0, 2), (2, 5)]),
    ],
)
def test_shards_are_even_and_not_too_small(count, least, expected):
    assert parallel.shards(count, least) == expected


def test_fewer_than_one_thread_raises():
    with pytest.raises(ValueError, match="count >= 1"):
        parallel.set_num_threads(0)


def test_a_browser_has_one_thread_and_says_so(monkeypatch):
    monkeypatch.setattr("sys.platform", "emscripten")
    before = parallel.num_threads()
    with pytest.raises(ArgumentError, match="rule: a browser runs one thread"):
        parallel.set_num_threads(2)
    assert parallel.num_threads() == before


def test_one_thread_of_blas_restores_what_it_found():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before = get()
    put(2)
    with parallel.one_blas_thread():
        assert get() == 1
    assert get() == 2
    with pytest.raises(KeyError), parallel.one_blas_thread():
        raise KeyError
    assert get() == 2
    put(before)


def test_after_an_interrupt_at_any_line_the_next_block_restores_what_was_before():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before, count = get(), 0

    def run():
        with parallel.one_blas_thread():
            pass

    try:
        put(2)
        for _ in broken_off(run, ("runtime/parallel.py",)):
            count += 1
            with parallel.one_blas_thread():
                assert get() == 1
            assert get() == 2
        assert count > 10
        put(1)  # by the user, between two blocks
        run()
        assert get() == 1
    finally:
        put(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_is_in_blas_has_nobody_there():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before, inside, over = get(), threading.Event(), threading.Event()
    put(2)

    def stay():
        with parallel.one_blas_thread():
            inside.set()
            over.wait()

    def is_as_outside():
        found = [get()]
        with parallel.one_blas_thread():
            found.append(get())
        return [*found, get()] == [2, 1, 2]

    def is_still_inside():
        with parallel.one_blas_thread():
            pass
        return get() == 1

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    assert in_child(is_as_outside)
    with parallel.one_blas_thread():
        assert in_child(is_still_inside)
    over.set()
    thread.join()
    assert get() == 2
    put(before)
