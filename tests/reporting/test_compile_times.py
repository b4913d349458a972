"""Compiling, once in a process, is told apart from what a step takes."""

import time
from collections import deque

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.runtime import compiling
from dynbatch.kernels.runtime.compiling import seconds_compiling


@pytest.fixture
def times(monkeypatch):
    """The times of compiling: none yet."""
    found = deque(maxlen=9)
    monkeypatch.setattr(compiling, "_times", found)
    return found


def test_times_of_threads_that_overlap_count_once(times):
    times += [(1.0, 3.0), (2.0, 4.0), (1.5, 5.0), (8.0, 9.0)]
    assert seconds_compiling(0.0, 10.0) == 5.0
    assert seconds_compiling(2.5, 8.25) == 2.75
    assert seconds_compiling(9.0, 10.0) == seconds_compiling(5.0, 8.0) == 0.0


def test_another_thread_may_compile_while_the_times_are_added_up(times):
    class Begin(float):
        def __ge__(self, last):  # asked of each time: another thread has compiled once meanwhile
            if len(times) == 3:
                times.append((9.5, 9.75))
            return super().__ge__(last)

    times += [(1.0, 3.0), (2.0, 4.0), (8.0, 9.0)]
    assert seconds_compiling(Begin(0.0), 10.0) == 4.0


def test_an_inner_block_is_part_of_the_outer_one(times):
    with compiling.compiling():
        with compiling.compiling():
            pass
        assert not times
    with pytest.raises(ValueError), compiling.compiling():
        raise ValueError
    assert len(times) == 2


def compiling_tanh(monkeypatch, seconds):
    """A graph whose Tanh compiles for some seconds, on a clock that nothing else moves."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with db.Graph() as graph:
        y = F.tanh(F.input(graph, np.ones(2)))
        forward = type(y).forward_batch

        def slow(batch, *arrays):
            with compiling.compiling():
                now[0] += seconds
            return forward(batch, *arrays)

        monkeypatch.setattr(type(y), "forward_batch", slow)
        now[0] += 0.5
        y.value  # noqa: B018
    return graph


def test_what_a_step_compiles_is_in_no_other_time(monkeypatch, times):
    graph = compiling_tanh(monkeypatch, 8.0)
    statistics, record = graph.statistics, graph._record()
    assert statistics.compile_seconds == record.compile_seconds == 8.0
    assert (statistics.kernel_seconds, statistics.host_seconds) == (0.0, 0.0)
    assert record.build_seconds == 0.5
    assert [row.seconds for row in record.rows] == [0.0, 0.0]
    assert "\ncompiling 8000.00 ms besides, once" in graph.explain()
    assert "\ncompiling took 8,000.0 ms besides, once: ask a later step" in graph.advice()


def test_a_step_that_compiles_little_or_nothing_is_not_told_of_it(monkeypatch, times):
    assert "compiling" not in compiling_tanh(monkeypatch, 0.01).advice()
    with db.Graph() as graph:
        F.input(graph, np.ones(2)).value  # noqa: B018
    assert "compiling" not in graph.explain(advice=True)
