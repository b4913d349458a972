"""A vector that is the same in every step has one row in a scan, as a part of the state does."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

D, T, N = 64, 50, 20


def gates(x, h, p):
    wide = p.x(x) + p.h(h)
    return [wide[k * D : (k + 1) * D] for k in range(4)]


@db.cell
def plain(x, state, p):
    h, c = state
    i, f, o, u = gates(x, h, p)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(u)
    h = F.sigmoid(o) * F.tanh(c)
    return h, (h, c)


@db.cell
def peephole(x, state, p):
    h, c = state
    i, f, o, u = gates(x, h, p)
    c = F.sigmoid(f + p.f * c) * c + F.sigmoid(i + p.i * c) * F.tanh(u)
    h = F.sigmoid(o + p.o * c) * F.tanh(c)
    return h, (h, c)


@db.cell
def scaled(x, h, p, scale):
    h = F.tanh(x + scale * h)
    return h, h


def parameters():
    db.seed(0)
    rng = np.random.default_rng(0)
    peeps = {k: db.Parameter(rng.normal(0, 0.3, D).astype(np.float32)) for k in "ifo"}
    return SimpleNamespace(x=models.Linear(D, 4 * D), h=models.Linear(D, 4 * D), **peeps)


def sentence(seed, length=T):
    return np.random.default_rng(seed).normal(size=(length, D)).astype(np.float32)


def build(graph, cell, p, recompute=None):
    inputs = [F.input(graph, sentence(k)) for k in range(N)]
    outputs = [db.scan(cell, x, (D, D), p, recompute=recompute)[0] for x in inputs]
    return F.sum(F.stack([F.sum(y) for y in outputs]))


def gradients(p, cell=peephole, memory_limit=None, recompute=None):
    for one in (p.i, p.f, p.o):
        one.grad = None
    with db.Graph() as graph:
        graph.backward(build(graph, cell, p, recompute), memory_limit=memory_limit)
    return [one.grad.copy() for one in (p.i, p.f, p.o)]


@pytest.mark.parametrize("recompute", [None, 7])
def test_three_peepholes_cost_rows_of_sentences_not_of_tokens(recompute):
    p, peaks = parameters(), []
    for cell in (plain, peephole):
        with db.Graph() as graph:
            peaks.append(graph.estimate(build(graph, cell, p, recompute)).peak_bytes)
    # The parameter's node, the state before, its gradient, and the port with its own.
    assert peaks[1] - peaks[0] == 5 * (3 * N * D * 4)


def test_peepholes_make_no_node_of_rows_and_copy_nothing():
    p, copied = parameters(), []
    for cell in (plain, peephole):
        with db.Graph() as graph:
            loss = build(graph, cell, p)
            graph.backward(loss)
            report = str(graph.explain())
            assert " Expand " not in report
            copied.append(report.split(" bytes copied")[0].split()[-1])
    assert copied[0] == copied[1]


def test_gradients_are_the_same_bits_recomputed_and_within_a_limit():
    p = parameters()
    with db.Graph() as graph:
        peak = graph.estimate(build(graph, peephole, p)).peak_bytes
    expected = gradients(p)
    for how in ({"recompute": 7}, {"recompute": "sqrt"}):
        for a, b in zip(expected, gradients(p, **how), strict=True):
            assert np.array_equal(a, b)
    for a, b in zip(expected, gradients(p, memory_limit=int(peak * 0.8)), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recompute", [None, 7, "sqrt"])
def test_the_gradient_of_a_held_vector_has_the_same_bits_in_any_company(recompute):
    p, vector = parameters(), sentence(7, 1)[0]

    def gradient(count, place):
        lengths = np.random.default_rng(count).integers(1, 60, count)
        with db.Graph() as graph:
            losses = []
            for k, length in enumerate(lengths):
                scale = F.input(graph, vector)
                if k == place:
                    scale.keep()
                    kept, length = scale, 37
                x = F.input(graph, sentence(99 if k == place else k, length))
                ys = db.scan(scaled, x, D, p, memory=scale, recompute=recompute)[0]
                losses.append(F.sum(F.tanh(ys)))
            graph.backward(F.sum(F.stack(losses)))
            return np.array(kept.gradient)

    alone = gradient(1, 0)
    assert alone.any()
    for count, place in ((2, 1), (4, 2), (16, 3), (30, 29), (64, 10), (200, 77)):
        assert np.array_equal(alone, gradient(count, place))


def test_values_without_gradients_are_those_with_and_those_of_calls():
    p = parameters()
    with db.Graph() as graph:
        expected = build(graph, peephole, p).value
    with db.Graph(grad=False) as graph:
        assert build(graph, peephole, p).value == expected
    with db.Graph(grad=False) as graph:
        total = 0.0
        for k in range(N):
            x, zero = F.input(graph, sentence(k)), F.input(graph, np.zeros(D, np.float32))
            state, outputs = (zero, zero), []
            for t in range(T):
                y, state = peephole(x[t], state, p)
                outputs.append(y)
            total += float(F.sum(F.stack(outputs)).value)
    assert np.isclose(total, float(expected), rtol=1e-4)


def test_a_part_that_no_step_changes_is_handed_back_as_it_was_given():
    p, vector = parameters(), sentence(7, 1)[0]

    @db.cell
    def cell(x, state, p):
        h, scale = state
        h = F.tanh(p.x(x)[:D] + scale * h)
        return h, (h, scale)

    with db.Graph() as graph:
        for length in (3, 0, 5):
            given = F.input(graph, vector)
            _, (_, left) = db.scan(cell, F.input(graph, sentence(1, length)), (D, given), p)
            assert np.array_equal(left.value, vector)


def test_a_map_of_a_slice_of_a_part_that_no_step_changes_has_its_gradient():
    p, wide = parameters(), np.concatenate([sentence(7, 1)[0], np.ones(3, np.float32)])

    @db.cell
    def cell(x, state, p):
        h, held = state
        h = F.tanh(x + p.h(held[:D])[:D] * h)
        return h, (h, held)

    def gradient(runs_scan):
        p.h.weight.grad = None
        with db.Graph() as graph:
            x, given = F.input(graph, sentence(1, 5)), F.input(graph, wide)
            if runs_scan:
                y = db.scan(cell, x, (D, given), p)[0][4]
            else:
                state = (F.input(graph, np.zeros(D, np.float32)), given)
                for t in range(5):
                    y, state = cell.function(x[t], state, p)
            graph.backward(F.sum(y))
        return p.h.weight.grad.copy()

    assert np.allclose(gradient(True), gradient(False), rtol=1e-4, atol=1e-5)
