"""Traces are kept for the parameters that they read, and found by few reads of others."""

import re
from types import SimpleNamespace

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler.recorder import Recorder, reads_of
from dynbatch.compiler.traced import Traced, take_first_traced


class Counted(SimpleNamespace):
    """Parameters that count how often one of them is read."""

    reads = 0

    def __getattribute__(self, name):
        if name.startswith("weight"):
            Counted.reads += 1
        return super().__getattribute__(name)


def traced(params):
    """What is kept of a cell that reads ten parameters."""
    recorder = Recorder(params)
    for k in range(10):
        getattr(recorder, f"weight{k}")
    return SimpleNamespace(reads=reads_of(recorder))


def test_another_models_trace_is_passed_by_after_one_read():
    models = [Counted(**{f"weight{k}": 10.0 * n + k for k in range(10)}) for n in range(7)]
    traces = Traced(7, lambda: None)
    made = [traces.add((), params, traced(params)) for params in models]
    for n, params in enumerate(models):  # the one not used for longest, then those before it
        Counted.reads = 0
        assert traces.find((), params) is made[n]
        assert Counted.reads == 10
    Counted.reads = 0
    assert traces.find((), models[-1]) is made[-1]
    assert Counted.reads == 6 + 10


def test_what_is_traced_for_the_first_time_is_named_once_by_its_definition():
    def make():
        @db.cell
        def add_one(x):
            return x + 1

        return add_one

    take_first_traced()
    for _ in range(2):
        cell = make()
        with db.Graph() as graph:
            for width in (1, 2):  # the second is a trace of a cell that has one
                cell(F.input(graph, np.ones(width)))
            (name,) = take_first_traced()
            assert re.fullmatch(r"add_one \(test_traced.py:\d+\)", name)
            cell(F.input(graph, np.ones(1)))
            cell(F.input(graph, np.ones(3)))
            assert not take_first_traced()
