"""Programs beside the mistakes that rules on batches tell: they are let be."""

from itertools import pairwise

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime import library
from dynbatch.reporting import last_graphs


@pytest.fixture(autouse=True)
def as_a_process_with_c_begins(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "")
    last_graphs.forget()


def stands_out(graph):
    return [line for line in graph.explain().splitlines() if line.startswith("stands out")]


def test_a_layer_for_each_language_is_no_copy():
    layers = [models.Linear(4, 3, rng=k) for k in range(5)]
    with db.Graph() as graph:
        for number in range(30):
            F.tanh(layers[number % 5](F.input(graph, np.ones((1 + number % 7, 4)))))
        graph.forward()
    assert not stands_out(graph)


def test_one_layer_that_is_applied_to_whole_sentences_again_and_again_is_no_loop_over_tokens():
    layer = models.Linear(4, 4, rng=0)
    with db.Graph() as graph:
        for number in range(20):
            h = F.input(graph, np.ones((1 + number % 7, 4)))
            for _ in range(12):
                h = F.tanh(layer(h))
        graph.forward()
    assert not stands_out(graph)


def test_layers_that_see_one_sentence_are_no_copies():
    lstm, queries, keys = (
        models.LSTM(4, 4, 2, bidirectional=True, rng=0),
        *[models.Linear(8, 4, rng=0) for _ in range(2)],
    )
    with db.Graph() as graph:
        h = lstm(F.input(graph, np.ones((5, 4))))
        for layer in (queries, keys):
            F.softmax(layer(h))
        graph.forward()
    assert not stands_out(graph)


def test_parameters_as_values_are_no_copies():
    scales = [db.Parameter(np.ones(4, np.float32), f"scale {k}") for k in range(6)]
    with db.Graph() as graph:
        for number in range(8):
            h = F.input(graph, np.ones((1 + number, 4)))
            for scale in scales:
                h = h * F.parameter(graph, scale)
        graph.forward()
    assert not stands_out(graph)


def test_what_ran_apart_for_values_that_were_read_is_no_policys_fault():
    layer = models.Linear(4, 4, rng=0)
    with db.Graph() as graph:
        for _ in range(9):
            h = F.tanh(layer(F.input(graph, np.ones((3, 4)))))
            F.exp(F.sum(F.tanh(layer(h)))).value  # noqa: B018
    assert [line[:30] for line in stands_out(graph)] == ["stands out: values were read w"]


def test_a_value_that_is_read_twice_while_a_graph_is_built_is_let_be():
    with db.Graph() as graph:
        for number in range(2):
            F.sum(F.tanh(F.input(graph, np.ones((3 + number, 4))))).value  # noqa: B018
    assert not stands_out(graph)


def test_layers_of_other_widths_are_a_models():
    widths = [4, 8, 16, 32, 64, 2]
    layers = [models.Linear(a, b, rng=0) for a, b in pairwise(widths)]
    with db.Graph() as graph:
        for number in range(20):
            h = F.input(graph, np.ones((1 + number % 7, 4)))
            for layer in layers:
                h = F.tanh(layer(h))
        graph.forward()
    assert not stands_out(graph)


def test_a_driver_of_few_sentences_reads_no_value_alone():
    layer = models.Linear(4, 4, rng=0)

    def walk(graph, length):
        h = F.input(graph, np.ones(4))
        for _ in range(length):
            h = F.tanh(layer(h))
            yield F.sum(h)

    with db.Graph(grad=False) as graph:
        db.drive(graph, [walk(graph, length) for length in (3, 9, 5)])
    assert len(graph.plans) == 9 and graph.statistics.lone_runs == 0
    assert not stands_out(graph)


def test_two_values_that_are_read_at_the_end_are_one_run():
    with db.Graph() as graph:
        values = [F.sum(F.tanh(F.input(graph, np.ones((n, 2))))) for n in range(1, 30)]
        [value.value for value in values]
    assert graph.statistics.lone_runs == 1 and not stands_out(graph)
