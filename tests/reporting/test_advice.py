"""Each rule of advice, on a run that deserves it; times are given, so that none is measured."""

import os
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution.record import RunTimes
from dynbatch.errors import ArgumentError
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import compiling, parallel
from dynbatch.reporting.advice import advice, advice_text
from dynbatch.reporting.rules import Observed

NOTHING = Observed({}, "", False, False)


@pytest.fixture(autouse=True)
def with_c_and_all_processors(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(compiling, "_times", deque(maxlen=0))


def record_of(graph, build=0.0, host=0.001, kernels=0.01, each=0.0):
    """The record of a graph's runs with other times, in seconds; `each` is that of a kernel."""
    record = graph._record()
    statistics = replace(record.statistics, host_seconds=host, kernel_seconds=kernels)
    runs = [RunTimes(build, build, build, 1.0)]
    rows = [
        row._replace(spans=[(what, 0.0, each) for what, _, _ in row.spans]) for row in record.rows
    ]
    return record._replace(statistics=statistics, rows=rows, runs=runs, begin=0.0)


def squares(count=12):
    """A graph that does what it should."""
    with db.Graph() as graph:
        for length in range(1, count + 1):
            F.sum(F.tanh(F.input(graph, np.ones((length, 2)))))
        graph.forward()
    return graph


def problems(record, observed=NOTHING):
    return [one.problem for one in advice(record, observed)]


def test_a_good_run_is_told_so():
    record = record_of(squares(), each=1.0)
    assert advice(record, NOTHING) == []
    told = " ".join(advice_text(record, NOTHING).split())
    assert told.startswith("what to change: nothing stands out. In 3 batches, at least 3, kernels")
    assert "take 91% of the time, Input 33% of theirs" in told


def test_a_missing_compiler_halves_the_kernels_time(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "there is no C compiler")
    (only,) = advice(record_of(squares()), NOTHING)
    assert only.seconds == 0.005 and "there is no C compiler" in only.problem
    assert "pip install 'dynbatch[compiler]'" in only.fix


def test_small_mini_batches_are_told_by_the_time_of_planning():
    record = record_of(squares(), host=0.01, kernels=0.004)
    (only,) = advice(record, NOTHING)
    assert only.seconds == 0.005 and "3 batches (at least 3)" in only.problem
    assert "more sentences in a mini-batch" in only.fix
    assert not problems(record_of(squares(), host=0.003, kernels=0.01))
    many = [row._replace(rows=2000) for row in record.rows]
    assert not problems(record._replace(rows=many))


def test_python_that_makes_the_nodes_is_told_by_its_time():
    record = record_of(squares(), build=0.02)
    (first,) = advice(record, NOTHING)
    assert first.seconds == 0.02 and "its 36 nodes do not explain" in first.problem
    assert "65% of the time: " in advice_text(record, NOTHING)
    inlined = NOTHING._replace(block_notes={("layer", "inlined, since it reads a value"): 2})
    told = advice(record, inlined)
    assert "tracing blocks" in told[0].problem and "2 calls inlined" in told[-1].problem
    (first,) = advice(record_of(squares(), build=0.006), NOTHING)
    assert "with 36 nodes, 12 of them Input" in first.problem and "@db.block" in first.fix


def test_a_graph_of_few_sentences_is_told_by_what_more_would_share():
    record = record_of(squares(2), host=0.004, kernels=0.003, each=0.001)
    (only,) = advice(record, NOTHING)
    assert "no batch has more than 2 nodes" in only.problem and "32 sentences" in only.fix
    assert only.seconds == pytest.approx(0.004 * 30 / 32 + 0.001 * (29 + 29 + 30) / 32)
    assert not problems(record_of(squares(9), host=0.001, kernels=0.01, each=0.003))
    assert not problems(record_of(squares(2), host=0.001, kernels=0.01))


def test_more_sentences_are_no_advice_where_each_runs_alone():
    with db.Graph() as graph:
        for length in range(1, 13):
            float(F.sum(F.tanh(F.input(graph, np.ones((length, 2))))).value)
    (only,) = advice(record_of(graph, host=0.04, kernels=0.004), NOTHING)
    assert "values were read" in only.problem


def test_a_logarithm_of_a_softmax_is_told_and_others_are_not():
    with db.Graph() as graph:
        for length in range(1, 13):
            F.log(F.softmax(F.input(graph, np.ones((length, 2)))))
            F.log(F.input(graph, np.ones((length, 3))))
            F.log_softmax(F.input(graph, np.ones((length, 2))))
        graph.forward()
    (only,) = advice(record_of(graph, each=0.001), NOTHING)
    assert "logarithm of it, take 2.0" in only.problem and "F.cross_entropy" in only.fix
    assert only.seconds == pytest.approx(0.002)


def test_a_recurrence_has_one_row_a_sentence_at_a_time():
    lstm = models.LSTM(2, 3)
    with db.Graph() as graph:
        for length in (60, 70):
            lstm(F.input(graph, np.ones((length, 2))))
        graph.forward()
    record = record_of(graph, host=0.0, kernels=0.01, each=0.01)
    (only,) = advice(record, NOTHING)
    assert only.seconds == pytest.approx(0.01 * (1 - 2 / 32))


def test_a_layer_for_each_sentence_is_told_and_layers_of_a_model_are_not():
    with db.Graph() as graph:
        for length in range(1, 13):
            models.Linear(2, 3)(F.input(graph, np.ones((length, 2))))
        graph.forward()
    (only,) = advice(record_of(graph, host=0.008, kernels=0.004), NOTHING)
    assert "LinearMap ran with 12 parameters or sets of them, for 12 nodes" in only.problem
    assert only.seconds == pytest.approx(11 / 13 * 0.008) and "one layer for all" in only.fix
    layers = [models.Linear(2, 2) for _ in range(12)]
    with db.Graph() as graph:
        for length in range(1, 13):
            h = F.input(graph, np.ones((length, 2)))
            for layer in layers:
                h = layer(h)
        graph.forward()
    (only,) = advice(record_of(graph, host=0.008, kernels=0.004), NOTHING)
    assert "more sentences in a mini-batch" in only.fix


def test_a_loop_over_tokens_with_one_weight_is_told_and_layers_are_not():
    layer = models.Linear(4, 4)
    with db.Graph() as graph:
        for length in (12, 9):
            h = F.input(graph, np.ones(4))
            for _ in range(length):
                h = F.tanh(layer(h))
        graph.forward()
    told = problems(record_of(graph, host=0.002))
    assert len(told) == 1 and "ran 12 times with one weight" in told[0]
    layers = [models.Linear(4, 4) for _ in range(12)]
    with db.Graph() as graph:
        h = F.input(graph, np.ones(4))
        for layer in layers:
            h = F.tanh(layer(h))
        graph.forward()
    assert not problems(record_of(graph, host=0.002))


def test_values_that_are_read_in_between_are_told_with_the_runs():
    with db.Graph() as graph:
        for length in (1, 2, 3):
            x = F.tanh(F.input(graph, np.ones((length, 2))))
            float(F.sum(x).value)
    (only,) = advice(record_of(graph, host=0.002, each=0.001), NOTHING)
    assert "in 3 runs: 6 batches ran apart" in only.problem and "db.drive" in only.fix
    spared = 0.001 * sum([1 - rows / 32 for rows in (2, 2, 1, 3, 3, 1)])
    assert only.seconds == pytest.approx(6 / 9 * 0.002 + spared)


def test_runs_of_many_sentences_and_layers_that_are_blocks_are_no_fault():
    layers = [models.TransformerEncoderLayer(4, 2, 8) for _ in range(4)]

    def deciding(x):
        yield F.sum(x)
        return (yield F.sum(F.tanh(x)))

    with db.Graph(grad=False) as graph:
        xs = [F.input(graph, np.ones((length, 4))) for length in range(1, 13)]
        for layer in layers:
            xs = [layer(x) for x in xs]
        db.drive(graph, [deciding(x) for x in xs])
        db.drive(graph, [deciding(x) for x in xs])
    assert len(graph.plans) > 2
    assert not problems(record_of(graph, host=0.002, each=0.001))


def test_a_policy_that_keeps_nodes_apart_is_told_beside_the_lower_bound():
    with db.Graph(policy="one_by_one") as graph:
        for _ in range(3):
            F.tanh(F.input(graph, np.ones(2)))
        graph.forward()
    (only,) = advice(record_of(graph, host=0.002), NOTHING)
    assert "one_by_one made 6 batches, where 2 could do" in only.problem
    assert only.seconds == pytest.approx(4 / 6 * 0.002)


def test_widths_and_attributes_that_differ_are_told_by_node_type():
    with db.Graph() as graph:
        for width in range(1, 7):
            F.softmax(F.input(graph, np.ones((2, width))))
        for alpha in (0.1, 0.2, 0.3, 0.4):
            F.elu(F.input(graph, np.ones((2, 2))), alpha=alpha)
        graph.forward()
    told = problems(record_of(graph, host=0.003))
    assert any(["Softmax ran in 6 groups that could be one: widths" in one for one in told])
    assert any(["Elu ran in 4 groups" in one and "alpha differs: 0.1 / 0.2" in one for one in told])


def test_a_memory_limit_is_told_with_what_it_computes_again():
    layers = [models.Linear(*(16, 64)[:: (-1) ** k]) for k in range(8)]
    with db.Graph() as graph:
        losses = []
        for length in (20, 30):
            h = F.input(graph, np.ones((length, 16), "float32"))
            for layer in layers:
                h = F.tanh(layer(h))
            losses.append(F.sum(h))
        loss = F.sum(losses)
        graph.backward(loss, memory_limit=graph.estimate(loss).peak_bytes * 7 // 10)
    saving = graph.memory_use.saving
    told = advice(record_of(graph, each=1.0), NOTHING._replace(saving=saving))
    assert saving.startswith("recompute")
    assert f"memory_limit: {saving}; computing again takes 4,000" in told[0].problem
    assert "higher memory_limit" in told[0].fix


def test_check_and_float64_are_told(monkeypatch):
    monkeypatch.setattr(
        "dynbatch.reporting.advice.LEAST_SHARE", 0.0
    )  # whatever a busy machine takes
    (only,) = advice(record_of(squares()), NOTHING._replace(is_doubled=True))
    assert "check or guard" in only.problem
    (only,) = advice(record_of(squares()), NOTHING._replace(is_float64=True))
    assert "float64" in only.problem and "10.0" in only.problem
    with db.Graph(check=True, dtype="float64") as graph:
        F.tanh(F.input(graph, np.ones(2))).value  # noqa: B018
    told = graph.advice()
    assert "check or guard" in told and "float64" in told
    assert graph.explain().endswith("that of the checks too")


def test_threads_are_told_where_processors_are_left(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(db.num_threads() * 4)))
    (only,) = advice(record_of(squares()), NOTHING)
    assert f"on {db.num_threads()} of {db.num_threads() * 4} processors" in only.problem
    assert only.seconds == 0.0075
    monkeypatch.setitem(parallel._settings, "share", db.num_threads())  # ranks take the others
    assert not advice(record_of(squares()), NOTHING)


def test_calls_of_blocks_that_are_inlined_are_told_without_a_figure():
    @db.block
    def settle(x):
        return F.tanh(x) if float(F.sum(x).value) > 0 else x

    with db.Graph() as graph:
        for length in (1, 2):
            settle(F.input(graph, np.ones((length, 2))))
        graph.forward()
    told = graph.explain(advice=True)
    assert "\n\nwhat to change" in told
    assert any(
        ["settle: 2 calls inlined, since it reads a value" in one for one in told.split("\n")]
    )


def test_what_brings_most_comes_first_and_what_brings_little_not_at_all():
    record = record_of(squares(), build=0.02, host=0.012, kernels=0.005)
    told = advice(record, NOTHING._replace(is_float64=True))
    assert [one.seconds for one in told] == [0.02, 0.006, 0.0025]
    assert len(advice(record_of(squares(), build=1.0), NOTHING._replace(is_float64=True))) == 1
    text = advice_text(record, NOTHING._replace(is_float64=True))
    assert text.splitlines()[1].startswith("  1. 54% of the time: from making the graph")
    assert max(map(len, text.splitlines())) <= 80


def test_a_layer_for_each_token_is_told_and_nameless_layers_of_a_model_are_not():
    cell = models.Linear(2, 2)
    with db.Graph() as graph:
        for length in (5, 7):
            h = F.input(graph, np.ones(2))
            for _ in range(length):
                h = F.tanh(cell(h))
                models.Linear(2, 3)(h)
        graph.forward()
    record = record_of(graph, host=0.024, kernels=0.004)
    (told,) = [one for one in advice(record, NOTHING) if "one layer for all" in one.fix]
    assert "ran with 12 parameters or sets of them, for 12 nodes: parameters" in told.problem
    assert "all called 'weight'" in told.problem
    assert told.seconds == pytest.approx(11 / record.statistics.batches * 0.024)
    layers = [models.Linear(2, 2) for _ in range(12)]
    with db.Graph() as graph:
        h = F.input(graph, np.ones((20, 2)))
        for layer in layers:
            h = F.tanh(layer(h))
        for _ in range(20):
            F.sum(h)
        graph.forward()
    assert not any(["parameters or sets" in one for one in problems(record_of(graph))])


def test_one_sentence_with_a_node_for_each_token_is_told_as_few_sentences():
    cell, score = models.Linear(2, 2), models.Linear(2, 3)

    def graph_of(sentences):
        with db.Graph() as graph:
            for _ in range(sentences):
                h = F.input(graph, np.ones(2))
                for _ in range(12):
                    h = F.tanh(cell(h))
                    score(h)
            graph.forward()
        return graph

    told = problems(record_of(graph_of(1), host=0.006, kernels=0.004))
    assert any(["begins with no more than 1 node of a kind, so this" in one for one in told])
    assert not any(["planning" in one for one in told])
    told = problems(record_of(graph_of(9), host=0.006, kernels=0.004))
    assert not any(["few sentences" in one for one in told])


def test_a_graph_that_did_not_run_and_lines_too_narrow_to_read_are_told():
    with db.Graph() as graph:
        F.input(graph, np.ones(2))
        assert graph.advice().startswith("what to change: nothing has run yet")
        graph.forward()
    assert max(map(len, graph.advice(40).splitlines())) <= 40
    for columns in (39, "80"):
        with pytest.raises(ArgumentError, match="columns is"):
            graph.advice(columns)
