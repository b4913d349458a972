"""Advice from several graphs is given of those only that ran one after the other."""

import threading

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime import library
from dynbatch.reporting import last_graphs
from tests.reporting.programs import Tagger, data, train


@pytest.fixture(autouse=True)
def as_a_process_with_c_begins(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "")
    last_graphs.forget()


def stands_out(graph):
    return [line for line in graph.explain().splitlines() if line.startswith("stands out")]


def evaluate(model, count, **settings):
    for step in range(count):
        with db.Graph(**settings) as graph:
            graph.values([F.sum(model.loss(graph, example)) for example in data(seed=step)])
    return graph


@pytest.mark.parametrize(("count", "is_told"), [(3, False), (4, True)])
def test_evaluation_is_told_after_four_graphs_without_backward(count, is_told):
    model = Tagger()
    train(model.loss, model, steps=2)
    told = stands_out(evaluate(model, count))
    assert bool(told) == is_told and all("no backward ran" in line for line in told)


def test_a_graph_is_told_what_was_before_it_whenever_it_is_asked():
    model = Tagger()
    graph = evaluate(model, 4)
    train(model.loss, model, steps=9)
    assert stands_out(graph)


def test_an_open_graph_may_still_be_differentiated():
    model = Tagger()
    evaluate(model, 3)
    with db.Graph() as graph:
        graph.values([model.loss(graph, example) for example in data()])
        assert not stands_out(graph)
    assert stands_out(graph)


def test_graphs_of_other_threads_are_not_counted():
    model = Tagger()
    thread = threading.Thread(target=lambda: evaluate(model, 8))
    thread.start()
    thread.join()
    assert not stands_out(evaluate(model, 3))


def test_one_graph_of_many_sentences_among_small_ones_is_enough():
    model = Tagger()
    for step in range(8):
        graph = train(model.loss, model, steps=1, examples=data(30 if step == 3 else 2))
    assert not stands_out(graph)
    train(model.loss, model, steps=8, examples=data(2))
    graph = train(model.loss, model, steps=1, examples=data(2))
    assert "mini-batches of 2 sentences at most" in stands_out(graph)[0]


def test_two_large_sentences_have_enough_to_compute():
    wide = models.Linear(512, 512, rng=0)

    def loss(graph, example):
        return wide(F.input(graph, np.ones((40, 512), np.float32)))

    told = stands_out(train(loss, wide, steps=8, examples=data(2)))
    assert not [line for line in told if "mini-batches" in line]


def test_models_that_are_made_one_after_the_other_are_let_be():
    for _ in range(5):
        model = Tagger()
        graph = train(model.loss, model, steps=3)
        assert not stands_out(graph)


def test_a_model_made_anew_in_each_step_is_told():
    for _ in range(8):
        model = Tagger()
        graph = train(model.loss, model, steps=1)
    assert "were made anew in each of the last 8 graphs" in stands_out(graph)[0]


def test_cells_that_are_made_once_for_each_layer_are_let_be():
    class Layer(models.Module):
        def __init__(self):
            self.linear = models.Linear(16, 16, rng=0)
            self.apply = db.block(lambda x: F.tanh(self.linear(x)))

    model, layers = Tagger(), [Layer() for _ in range(6)]

    def loss(graph, example):
        h = model.embed(graph, example[0])
        for layer in layers:
            h = layer.apply(h)
        return F.cross_entropy(model.out(h), example[1])

    assert not stands_out(train(loss, model, steps=6))


def test_a_loss_that_is_read_one_step_later_is_let_be(cuda):
    model = Tagger().to("cuda")
    before = []
    for step in range(6):
        with db.Graph(device="cuda") as graph:
            loss = F.mean([F.sum(model.loss(graph, one)) for one in data(seed=step)])
            graph.backward(loss)
        before.append(loss)
        if step:
            float(before[step - 1].value)
    assert not stands_out(graph)
