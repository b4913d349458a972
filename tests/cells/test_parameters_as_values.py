"""Inside a cell or a block a parameter is a node, also where nothing stands beside it."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DynbatchError

WIDTH = 4
EXPRESSIONS = {
    "-p": lambda p, q: -p,
    "abs(p)": lambda p, q: abs(p),
    "p + q": lambda p, q: p + q,
    "p * q - p / q": lambda p, q: p * q - p / q,
    "2 * p": lambda p, q: 2 * p,
    "p * 2": lambda p, q: p * 2,
    "1 - p": lambda p, q: 1 - p,
    "p + 1": lambda p, q: p + 1,
    "1 / p": lambda p, q: 1 / p,
    "p ** 2 + 2 ** q": lambda p, q: p**2 + 2**q,
    "p > q": lambda p, q: (p > q) + (p <= 0.2),
    "p[1:3]": lambda p, q: F.concat([p[1:3], q[[0, 3]]]),
    "p.exp()": lambda p, q: p.exp(),
    "exp(-exp(p))": lambda p, q: F.exp(-F.exp(p)),
    "add": lambda p, q: F.add(p, q) + F.add(p, 1.0) + F.add(1.0, p),
    "multiply": lambda p, q: F.multiply(p, q) + F.multiply(2.0, p),
    "maximum": lambda p, q: F.maximum(p, q) + F.minimum(p, 0.3),
    "where": lambda p, q: F.where(p > 0.2, p, q) + F.where(True, p, 0.0),
    "softmax": lambda p, q: F.softmax(p) + F.log_softmax(q, dim=-1),
    "sum": lambda p, q: F.sum(p) + F.mean(q) + F.logsumexp(p) + q,
    "reshape": lambda p, q: F.reshape(F.unsqueeze(p, 0), (WIDTH,)),
    "dot": lambda p, q: F.dot(p, q) * p,
    "stack": lambda p, q: F.sum(F.stack([p, q]), dim=0),
    "layer_norm": lambda p, q: F.layer_norm(p),
}


class Weights(models.Module):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.p = db.Parameter(generator.random(WIDTH))
        self.q = db.Parameter(generator.random(WIDTH))


def in_a_scan(expression, xs, model):
    @db.cell
    def step(x, h, w):
        h = F.tanh(x + h * expression(w.p, w.q))
        return h, h

    outputs, last = db.scan(step, xs, WIDTH, model)
    return F.sum(outputs) + F.sum(last)


def in_calls(expression, xs, model):
    @db.cell
    def step(x, h, w):
        return F.tanh(x + h * expression(w.p, w.q))

    h = db.initial_state(xs.graph, WIDTH)
    for t in range(xs.rows):
        h = step(xs[t], h, model)
    return F.sum(h + 0.0)


def in_a_block(expression, xs, model):
    @db.block
    def layer(x, w):
        return F.sum(F.tanh(x * expression(w.p, w.q)))

    return layer(xs, model)


def in_a_block_that_is_inlined(expression, xs, model):
    @db.block
    def layer(x, w):
        weight = float(F.input(x.graph, 1.0).value)
        return F.sum(F.tanh(x * expression(w.p, w.q))) * weight

    return layer(xs, model)


def in_a_cell_that_is_inlined(expression, xs, model):
    @db.cell
    def step(x, w):
        return F.sum(F.stack([x, F.tanh(x * expression(w.p, w.q))]), dim=0)  # makes a matrix

    return F.sum(step(xs[0], model) + 0.0)


def through_a_gradient(expression, xs, model):
    def of(rows):
        return in_a_scan(expression, rows, model)

    return F.sum(F.sin(db.grad(of)(xs)))


PLACES = (
    in_a_scan, in_calls, in_a_block, in_a_block_that_is_inlined, in_a_cell_that_is_inlined,
    through_a_gradient,
)  # fmt: skip


def outcome(place, expression):
    model = Weights()
    with db.Graph(dtype="float64") as graph:
        xs = [F.input(graph, np.ones((n, WIDTH))) for n in (3, 1, 5)]
        loss = F.sum([place(expression, x, model) for x in xs])
        graph.backward(loss)
        return float(loss.value), model.p.grad, model.q.grad


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_a_parameter_alone_is_what_its_node_is(place, name):
    expression = EXPRESSIONS[name]
    graphs = []

    def by_nodes(p, q):
        graph = graphs[-1]
        return expression(F.parameter(graph, p), F.parameter(graph, q))

    def noting(p, q):
        node = p * 1.0
        graphs.append(node.graph)
        return by_nodes(p, q) + 0.0 * node

    def plain(p, q):
        return expression(p, q) + 0.0 * (p * 1.0)

    found, expected = outcome(place, plain), outcome(place, noting)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            0.0 if a is None else a, 0.0 if b is None else b, rtol=1e-12, atol=1e-14
        )


def test_outside_of_them_it_is_an_error_that_says_so():
    model = Weights()
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((2, WIDTH)))
        in_a_scan(EXPRESSIONS["-p"], x, model)
        for wrong in (lambda: -model.p, lambda: model.p * 2, lambda: F.exp(model.p),
                      lambda: F.softmax(model.p), lambda: model.p[0], lambda: F.add(model.p, 1.0),
                      lambda: F.add(model.p, model.q), lambda: model.p.exp()):  # fmt: skip
            with pytest.raises(DynbatchError, match=r"F\.parameter\(graph, p\)"):
                wrong()


def test_a_cell_that_fails_leaves_no_graph_behind():
    @db.cell
    def failing(x, h, w):
        raise ValueError("in the cell")

    model = Weights()
    with db.Graph(dtype="float64") as graph:
        with pytest.raises(ValueError, match="in the cell"):
            db.scan(failing, F.input(graph, np.ones((2, WIDTH))), WIDTH, model)
        with pytest.raises(DynbatchError):
            _ = -model.p
