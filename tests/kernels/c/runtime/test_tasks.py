"""Tasks that are written down first, of one kernel or of several side by side."""

from functools import partial

import pytest

from dynbatch.kernels.c.runtime.tasks import Tasks, run_each, run_side_by_side
from dynbatch.kernels.runtime import parallel


def kernel(name, stops, log):
    """Writes down one task a stop, and notes when it goes on and on how many threads."""
    for number in range(stops):
        tasks = Tasks()
        tasks.then([partial(log.append, f"{name}{number}")])
        yield tasks
        log.append(f"{name}{number} is done, {parallel.available()}")


def test_a_kernel_goes_on_when_what_it_wrote_down_is_done():
    log = []
    run_each(kernel("a", 2, log))
    run_each(None)  # a kernel that writes nothing down
    assert [each.split(",")[0] for each in log] == ["a0", "a0 is done", "a1", "a1 is done"]


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_go_on_when_what_all_wrote_down_is_done(threads, monkeypatch):
    monkeypatch.setitem(parallel._settings, "threads", threads)
    log = []
    run_side_by_side([kernel("a", 2, log), kernel("b", 1, log)])
    assert sorted(log[:2]) == ["a0", "b0"]
    assert log[2:] == ["a0 is done, 1", "b0 is done, 1", "a1", "a1 is done, 1"]


def test_an_error_while_one_writes_leaves_the_tasks_of_all_undone():
    def wrong():
        raise ValueError("wrong")
        yield

    log = []
    with pytest.raises(ValueError, match="wrong"):
        run_side_by_side([kernel("a", 1, log), wrong()])
    assert log == []
