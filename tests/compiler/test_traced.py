"""Traces are kept for the parameters that they read, and found by few reads of others."""

import re
from types import SimpleNamespace

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler.recorder import Recorder, reads_of
from dynbatch.compiler.traced import Missing, Traced, Way, is_unchanged, take_first_traced


class Counted(SimpleNamespace):
    """Parameters that count how often one of them is read."""

    reads = 0

    def __getattribute__(self, name):
        if name.startswith("weight"):
            Counted.reads += 1
        return super().__getattribute__(name)


def traced(params):
    """The trace that is kept of a cell that reads ten parameters."""
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


class Logged:
    """Attributes, each of which notes when it is read."""

    def __init__(self, log, **attributes):
        self.log, self.found = log, attributes

    def __getattr__(self, name):
        self.log.append(name)
        try:
            return self.found[name]
        except KeyError:
            raise AttributeError(name) from None


def paths(*texts):
    return [tuple([(Way.ATTRIBUTE, name) for name in text.split(".")]) for text in texts]


def test_what_paths_have_in_common_is_read_once():
    log = []
    norm = Logged(log, weight=1, bias=2)
    params = Logged(log, layers=Logged(log, norm=norm, size=3), name="x")
    where = paths("layers.norm.weight", "layers.norm.bias", "layers.size", "name", "layers.norm")
    reads = dict(zip(where, (1, 2, 3, "x", norm), strict=True))
    assert is_unchanged(params, reads)
    assert log == "layers norm weight bias size name layers norm".split()
    log.clear()
    norm.found["bias"] = 5
    assert not is_unchanged(params, reads) and log == "layers norm weight bias".split()


def test_paths_behind_one_that_leads_nowhere_are_followed():
    params = Logged([], a=Logged([], b=1))
    where = paths("a.c.d", "a.c.e", "a.b", "a.b.real", "x.y", "a")
    expected = (Missing, Missing, 1, 1, Missing, params.a)
    assert is_unchanged(params, dict(zip(where, expected, strict=True)))
    for number, value in enumerate(expected):
        changed = [*expected]
        changed[number] = 7 if value is Missing else Missing
        assert not is_unchanged(params, dict(zip(where, changed, strict=True)))
