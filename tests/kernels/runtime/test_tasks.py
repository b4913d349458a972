"""Threads share the rows of a C function, each once, and tasks that were written down first."""

import itertools
import threading
import time
from functools import partial

import numpy as np
import pytest

from dynbatch.kernels import arrays
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import (
    Tasks,
    do,
    recording,
    run_side_by_side,
    share,
    share_rows,
    written,
)
from tests.forks import in_child

# `mark` adds an argument of each kind; `meet` waits until as many threads have come as wanted.
BODY = """
#include "common.h"
EXPORT void mark(ptrdiff_t first, ptrdiff_t last, int more, double x, REAL* out, const REAL* y) {
    for (ptrdiff_t i = first; i < last; i++) out[i] += more + x + (y ? y[i] : 0);
}
EXPORT void meet(ptrdiff_t part, int wanted, int32_t* come) {
    __atomic_fetch_add(come, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(come, __ATOMIC_SEQ_CST) < wanted) relax();
}
"""


@pytest.fixture
def functions():
    if library.reason() or not library.compiles():
        pytest.skip(library.reason() or library.no_compiler())
    return library.Library("sharing_test.c", BODY).functions(np.dtype(np.float64))


@pytest.fixture(autouse=True)
def three_threads():
    before = parallel.num_threads()
    parallel.set_num_threads(3)
    yield
    parallel.set_num_threads(before)


def test_each_row_is_given_once_and_small_arrays_are_one_call():
    calls = []

    def function(*arguments):
        calls.append(arguments)

    share_rows(function, 10, 100, 7, least=300)
    assert sorted(calls) == [(0, 3, 7), (3, 6, 7), (6, 10, 7)]
    calls.clear()
    share_rows(function, 10, 100, least=600)
    share_rows(function, 0, 0)
    assert calls == [(0, 10), (0, 0)]


def marked(functions, parts, y=None):
    """The array after `mark` has run on so many parts of 12 rows."""
    out = np.zeros(12)
    cuts = [12 * part // parts for part in range(parts + 1)]
    spans = itertools.pairwise(cuts)
    share(functions.mark, [(*span, -1, 2.5, address(out), y and address(y)) for span in spans])
    return out.tolist()


@pytest.mark.parametrize("parts", [1, 2, 3, 12])
def test_arguments_of_every_kind_arrive(functions, parts):
    y = np.arange(12.0)
    out = np.zeros(12)
    share(functions.mark, [(k, k + 1, -1, 2.5, address(out), address(y)) for k in range(12)])
    assert out.tolist() == [1.5 + k for k in range(12)]
    assert marked(functions, parts) == [1.5] * 12


def test_threads_run_parts_side_by_side(functions):
    for _ in range(50):  # awake workers and sleeping ones
        come = np.zeros(1, np.int32)
        share(functions.meet, [(part, 3, address(come)) for part in range(3)])
        assert come[0] == 3
    time.sleep(0.01)
    come[0] = 0
    share(functions.meet, [(part, 3, address(come)) for part in range(3)])


def test_workers_turn_from_c_to_python_and_back(functions):
    for _ in range(50):
        assert marked(functions, 3) == [1.5] * 12
        meeting = threading.Barrier(3, timeout=10)
        parallel.run([meeting.wait] * 3)


def test_work_of_two_python_threads_is_done_by_both(functions):
    found = []

    def use():
        found.extend([marked(functions, 3) for _ in range(200)])

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1.5] * 12] * 600


def test_a_task_shares_with_nobody(functions):
    come = np.zeros(1, np.int32)

    def work():
        share(functions.meet, [(part, 0, address(come)) for part in range(4)])

    parallel.run([work, work])
    assert come[0] == 8


def test_a_forked_child_has_workers_of_its_own(functions):
    assert marked(functions, 3) == [1.5] * 12

    def is_shared():
        come = np.zeros(1, np.int32)
        share(functions.meet, [(part, 3, address(come)) for part in range(3)])
        meeting = threading.Barrier(3, timeout=10)
        parallel.run([meeting.wait] * 3)
        return come[0] == 3

    assert in_child(is_shared)
    assert is_shared()


def kernel(name, log):
    """Writes down two stages, and notes at last on how many threads."""
    tasks = Tasks()
    for number in range(2):
        tasks.then([partial(log.append, f"{name}{number}")])
    tasks.at_last(lambda: log.append(f"{name} is done, {parallel.available()}"))
    return tasks


def test_what_a_kernel_wrote_down_is_done_in_order():
    log = []
    do(kernel("a", log))
    do(None)  # a kernel that writes nothing down
    assert log == ["a0", "a1", f"a is done, {parallel.available()}"]


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_end_when_what_all_wrote_down_is_done(threads, monkeypatch):
    monkeypatch.setitem(parallel._settings, "threads", threads)
    log = []
    run_side_by_side([partial(kernel, name, log) for name in "ab"])
    assert sorted(log[:4]) == ["a0", "a1", "b0", "b1"]
    assert log[4:] == ["a is done, 1", "b is done, 1"]


def test_an_error_while_one_writes_leaves_the_tasks_of_all_undone():
    def wrong():
        raise ValueError("wrong")

    log = []
    with pytest.raises(ValueError, match="wrong"):
        run_side_by_side([partial(kernel, "a", log), wrong])
    assert log == []


@pytest.mark.parametrize("threads", [1, 3])
def test_calls_that_were_written_down_are_done_again_and_again(functions, threads):
    parallel.set_num_threads(threads)
    out = np.zeros(12)

    def kernel():
        one = np.ones(12)  # which the calls keep
        share_rows(functions.mark, 12, 1, 2, 0.5, address(out), address(one), least=4, alive=[one])
        share(functions.mark, [(0, 1, 0, 0.25, address(out), None)])

    both = written(kernel)
    assert not out.any()
    both.extend(written(kernel))
    again = both.repeated()
    room = [np.full(12, 7.0) for _ in range(8)]  # where arrays of theirs would have been
    for turn in range(1, 4):
        again()
        assert len(again.times) == 4 and (np.diff([0, *again.times]) > 0).all()
        assert out.tolist() == [turn * 7.5, *[turn * 7.0] * 11]
    assert len(room) == 8
    share(functions.mark, [(0, 1, 0, 1.0, address(out), None)])  # nothing is written down now
    assert out[0] == 23.5


def test_a_kernel_without_a_version_in_c_is_neither_written_down_nor_done():
    out = np.zeros(3, np.float16)
    assert written(partial(arrays.fill, out, 1.0)) is None and not out.any()
    arrays.fill(out, 1.0)
    assert out.all()


# What workers did ---------------------------------------------------------------------------------


def test_what_workers_took_of_a_job_in_c_is_recorded(functions):
    spans, come = [], np.zeros(1, np.int32)
    begin = time.perf_counter()
    with recording(spans):
        share(functions.meet, [(part, 3, address(come)) for part in range(3)])
    end = time.perf_counter()
    come[0] = 0
    share(functions.meet, [(part, 3, address(come)) for part in range(3)])
    assert len({span.thread for span in spans} - {threading.get_ident()}) == len(spans) == 2
    assert len({span.part for span in spans}) == 2
    for span in spans:
        assert begin - 0.01 <= span.begin <= span.end <= end + 0.01  # by two clocks


def test_what_workers_took_in_python_is_recorded():
    spans, meeting = [], threading.Barrier(3, timeout=10)
    with recording(spans):
        parallel.run([meeting.wait] * 3)
    parallel.run([meeting.wait] * 3)
    assert len({span.thread for span in spans} - {threading.get_ident()}) == len(spans) == 2
    assert all(span.begin <= span.end for span in spans)


def test_a_thread_that_records_gets_nothing_of_another_s_jobs(functions):
    spans, others = [], threading.Thread(target=lambda: [marked(functions, 3) for _ in range(200)])
    with recording(spans):
        others.start()
        others.join()
    assert spans == []
