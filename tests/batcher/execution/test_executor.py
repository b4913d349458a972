"""Exact counters of a reference model: a lost merge or copy fails here without a stopwatch."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.execution.stage_runner import side_by_side
from dynbatch.kernels import blas
from dynbatch.kernels.runtime import parallel
from dynbatch.memory import Pool
from dynbatch.testing import NanPool, check_gradient
from tests.random_examples import examples
from tests.reference_models import Tagger, gradients, sentences, train

LENGTHS = [3, 1, 7, 0, 2]


def run(lengths, **settings):
    model = Tagger()
    with db.Graph(**settings) as graph:
        graph.backward(F.mean(model.losses(graph, sentences(lengths))))
    return graph


def test_counters_of_a_training_step():
    statistics = run(LENGTHS).statistics
    assert statistics.nodes == 4 * len(LENGTHS) + 1
    assert statistics.batches == 5
    # Forward and backward of lookup, linear and tanh; the mean, first backward; the loss once.
    assert statistics.launches == 3 * 2 + 2 + 1
    assert statistics.copied_bytes == 0


def test_counters_do_not_grow_with_the_mini_batch():
    small, large = run([4, 2]).statistics, run([4, 2] * 50).statistics
    assert (small.batches, small.launches) == (large.batches, large.launches)
    assert large.copied_bytes == 0


def test_one_by_one_launches_every_node_by_itself():
    assert run(LENGTHS, policy="one_by_one").statistics.batches == 4 * len(LENGTHS) + 1


def test_bytes_copied_are_those_of_inputs_that_do_not_lie_in_order():
    with db.Graph() as graph:
        for function, length in ((F.tanh, 2), (F.exp, 4)):
            F.sigmoid(function(F.input(graph, np.ones((length, 3)))))
        graph.forward()  # one Sigmoid batch reads a Tanh and an Exp batch
        assert graph.statistics.copied_bytes == 6 * 3 * 4


def test_activation_bytes_are_proportional_to_the_tokens():
    def activation_bytes(lengths):
        losses = len(lengths) + 1  # one number each, and the mean
        return run(lengths).statistics.activation_bytes - losses * 4

    per_token = (4 + 6 + 6) * 4  # lookup, linear, tanh in float32
    for lengths in ([1], [5, 1], [0, 9, 3], [80, 1, 1, 1]):
        assert activation_bytes(lengths) == per_token * sum(lengths)


def test_a_batch_takes_no_more_memory_for_being_uneven():
    # The same 100 tokens; a padded batch of the second would hold 4 * 97.
    assert run([25] * 4).peak_bytes == run([97, 1, 1, 1]).peak_bytes


def test_peak_bytes_are_what_the_pool_gave():
    pool = Pool()
    graph = run([30, 50, 41], pool=pool)
    assert 0 < graph.peak_bytes <= pool.peak_bytes <= max(1024, graph.peak_bytes * 9 / 8)


def test_backward_frees_what_it_does_not_need():
    def chain(length):
        with db.Graph(dtype="float64") as graph:
            x = F.input(graph, np.ones((100, 4))).keep()
            for _ in range(length):
                x = x + 1.0  # backward of a shift reads nothing
            graph.backward(F.sum(x))
        return graph.peak_bytes

    assert chain(20) == chain(5)


def test_inference_and_training_give_the_same_values():
    model = Tagger("float64")
    values = []
    for settings_ in ({}, {"grad": False}):
        with db.Graph(dtype="float64", **settings_) as graph:
            values.append([loss.value for loss in model.losses(graph, sentences(LENGTHS))])
    assert values[0] == values[1]


# Gradients of parameters --------------------------------------------------------------------------


def test_a_parameter_used_by_many_batches_gets_one_product(monkeypatch):
    products = []
    multiply = blas.matmul_outer

    def counted(x, dy, out, add):
        products.append(x.shape[0])
        multiply(x, dy, out, add)

    monkeypatch.setattr(blas, "matmul_outer", counted)
    generator = np.random.default_rng(0)
    weight = db.Parameter(generator.standard_normal((3, 3)))
    bias = db.Parameter(generator.standard_normal(3))
    with db.Graph(dtype="float64", pool=NanPool()) as graph:
        states = [F.input(graph, generator.standard_normal(3)) for _ in range(2)]
        for _ in range(5):  # a recurrence written step by step: five batches of one weight
            states = [F.tanh(F.linear(h, weight, bias)) for h in states]
        graph.backward(F.sum([F.sum(h * h) for h in states]))
    assert products == [10]
    found = weight.grad.copy(), bias.grad.copy()
    for parameter in (weight, bias):
        parameter.zero_grad()

    def loss(values):
        states = np.random.default_rng(0)
        states.standard_normal((3, 3)), states.standard_normal(3)
        h = np.stack([states.standard_normal(3) for _ in range(2)])
        for _ in range(5):
            h = np.tanh(h @ values[0].T + values[1])
        return (h * h).sum()

    for parameter, gradient in zip((weight, bias), found, strict=True):
        for place in np.ndindex(parameter.shape):
            before = parameter.value[place]
            sides = []
            for step in (1e-5, -1e-5):
                parameter.value[place] = before + step
                sides.append(loss((weight.value, bias.value)))
            parameter.value[place] = before
            assert gradient[place] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6)


def test_tied_embeddings_get_the_sum_of_both_gradients():
    generator = np.random.default_rng(0)
    table = db.Parameter(generator.standard_normal((9, 4)), "table")
    copy = db.Parameter(table.value.copy(), "copy")
    outcomes = []
    for projection in (table, copy):
        with db.Graph(dtype="float64", pool=NanPool()) as graph:
            losses = []
            for words, tags in (([1, 1, 3], [2, 8, 0]), ([7], [1])):
                hidden = F.tanh(F.lookup(graph, table, words))
                losses.append(F.cross_entropy(F.linear(hidden, projection), tags))
            graph.backward(F.mean(losses))
        grads = [p.grad for p in (table, copy) if p.grad is not None]
        outcomes.append(sum(g.dense() if isinstance(g, db.RowSparse) else g for g in grads))
        table.zero_grad()
        copy.zero_grad()
    np.testing.assert_allclose(outcomes[0], outcomes[1], rtol=1e-12, atol=1e-15)


def test_a_parameter_used_twice_by_one_node_gets_both_gradients():
    scale = db.Parameter(np.array([0.5, -1.0, 2.0]), "scale")
    check_gradient(
        lambda graph, x: F.layer_norm(x, scale, scale), shapes=[(4, 3)], parameters=[scale]
    )


def test_a_table_that_is_only_looked_up_has_a_sparse_gradient():
    table = db.Parameter(np.ones((1000, 2)))
    with db.Graph(dtype="float64") as graph:
        graph.backward(F.sum([F.sum(F.lookup(graph, table, ids)) for ids in ([5, 9, 5], [9], [])]))
    assert isinstance(table.grad, db.RowSparse)
    assert table.grad.rows.tolist() == [5, 9]
    assert table.grad.values.tolist() == [[2, 2], [2, 2]]


def test_the_gradient_array_is_reused_from_step_to_step():
    model = Tagger()
    train(model, sentences(LENGTHS))
    first = model.weight.grad
    gradients(model)
    train(model, sentences(LENGTHS))
    assert model.weight.grad is first


# Threads ------------------------------------------------------------------------------------------


@examples(10)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_threads_give_the_same_numbers(lengths):
    before, outcomes = db.num_threads(), []
    try:
        for threads in (1, 2):
            db.set_num_threads(threads)
            model = Tagger()
            outcomes.append([train(model, sentences(lengths)), *gradients(model)])
    finally:
        db.set_num_threads(before)
    for a, b in zip(*outcomes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_independent_batches_run_on_threads_of_their_own(monkeypatch):
    monkeypatch.setattr("dynbatch.batcher.execution.stage_runner.WORTH_A_THREAD", 1)
    before = db.num_threads()
    db.set_num_threads(2)
    try:
        weights = [db.Parameter(np.full((3, 3), 0.1 * k)) for k in (1, 2)]
        with db.Graph(dtype="float64", pool=NanPool()) as graph:
            x = F.input(graph, np.arange(12.0).reshape(4, 3) / 10).keep()
            sides = [F.tanh(F.linear(x, weight)) for weight in weights]
            graph.backward(F.sum(F.concat(sides) * F.concat(sides[::-1])))
            found = [x.gradient, *[w.grad for w in weights]]
    finally:
        db.set_num_threads(before)
    for w in weights:
        w.zero_grad()
    with db.Graph(dtype="float64", policy="one_by_one", pool=NanPool()) as graph:
        y = F.input(graph, x.value).keep()
        sides = [F.tanh(F.linear(y, weight)) for weight in weights]
        graph.backward(F.sum(F.concat(sides) * F.concat(sides[::-1])))
        for a, b in zip(found, [y.gradient, *[w.grad for w in weights]], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(("threads", "apart"), [(1, {0, 1, 2}), (2, {1, 2}), (4, {0, 1, 2})])
def test_threads_share_the_step_for_which_none_is_left(threads, apart, monkeypatch):
    monkeypatch.setitem(parallel._settings, "threads", threads)
    ran = {}

    def record(step):
        ran[step.number] = parallel.available()

    steps = [SimpleNamespace(work=work, number=k) for k, work in enumerate((1, 3, 2))]
    left = side_by_side(steps, record)
    assert set(ran) == apart and set(ran.values()) == {1}
    for step in left:
        record(step)
    assert len(ran) == 3 and all([ran[k] == threads for k in set(ran) - apart])
