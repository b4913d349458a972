"""Values among the arguments of a call, and the cell's parameters."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, MissingParameterError
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.testing.precision import dense_gradient

D = 3


@db.cell
def elman(x, h, p):
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return h, h


@db.cell
def pair(x, state, p):
    h, c = state
    c = F.tanh(F.linear(x, p.W) + h) * c
    return c, (F.sigmoid(c), c)


@db.cell
def squashed(x, h):
    h = F.tanh(x + F.sigmoid(h))
    return h


@db.cell
def summed(x, h):
    return F.tanh(x + h)


@db.cell
def mapped(x, weight):
    return F.tanh(F.linear(x, weight))


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"W": (D, D), "U": (D, D), "start": (D,), "other": (D,)}
    return SimpleNamespace(
        **{name: db.Parameter(rng.normal(size=shape), name) for name, shape in shapes.items()}
    )


def last_state(run, cell, name, p, graph, length):
    """The state after a loop over a sentence, of one of several ways to begin."""
    xs = F.input(graph, np.sin(np.arange(length * D)).reshape(length, D))
    nodes = {name: F.parameter(graph, getattr(p, name)) for name in ("start", "other")}
    given = nodes if run == "function" else vars(p)
    begin = {
        "one": given["start"],
        "two": (given["start"], given["other"]),
        "mixed": (given["start"], nodes["start"] * 0.5),
        "alone": given["start"],
    }[name]
    params = () if name == "alone" else (p,)
    state, outputs = begin, []
    for t in range(length):
        state = (cell.function if run == "function" else cell)(xs[t], state, *params)
        if name != "alone":
            y, state = state
            outputs.append(y)
        else:
            outputs.append(state)
    return F.sum(F.stack(outputs) ** 2)


@pytest.mark.parametrize(
    ("cell", "name"),
    [(elman, "one"), (pair, "two"), (pair, "mixed"), (squashed, "alone"), (summed, "alone")],
)
def test_a_parameter_is_a_first_state(cell, name, device):
    found = []
    for run in ("function", "calls"):
        p = parameters()
        for parameter in vars(p).values():
            parameter.to(device)
        with db.Graph(dtype="float64", device=device) as graph:
            loss = F.sum([last_state(run, cell, name, p, graph, n) for n in (2, 1, 3)])
            graph.backward(loss)
            found.append([loss.value, *map(dense_gradient, vars(p).values())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    assert np.abs(found[0][3]).max() > 1e-3


def test_a_single_parameter_is_what_the_function_takes_it_for():
    p = parameters()
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [0.1, 0.2, 0.3])
        np.testing.assert_allclose(mapped(x, p.W).value, np.tanh(to_host(p.W.value) @ x.value))
        start = to_host(p.start.value)
        sigmoid = 1 / (1 + np.exp(-start))
        np.testing.assert_allclose(squashed(x, p.start).value, np.tanh(x.value + sigmoid))
        np.testing.assert_allclose(
            summed(x, p.start).value, np.tanh(x.value + to_host(p.start.value))
        )


def test_first_states_of_all_sentences_run_with_later_ones():
    """A parameter as value is in the very table of calls that read states of calls."""
    p = parameters()
    with db.Graph(dtype="float64") as graph:
        for length in (3, 1):
            state = p.start
            for _ in range(length):
                _, state = elman(F.input(graph, np.ones(D)), state, p)
        graph.forward()
        assert len(graph.tables) == 1


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (lambda x, p: (x, p.start, p.other), ("are not values", "say which are values")),
        (lambda x, p: (x, [x, x], p), ("a list of nodes is neither", "(h, c) in place")),
        (lambda x, p: (x, [x, x]), ("a list of nodes is neither", "(h, c) in place of the list")),
        (lambda x, p: (x, {"h": x}), ("a dict of nodes is neither", "(h, c) in place")),
        (lambda x, p: (x, None, p), ("None is not a value.", "give its width: 64 for 64 zeros")),
        (lambda x, p: (x, np.ones(3), p), ("are not values", "F.input(graph, array)")),
        (lambda x, p: (x, p.W, p), ("are not values", "F.parameter(graph, p)")),
        (lambda x, p: (p.start, 3, p), ("there is no node",)),
    ],
)
def test_what_an_argument_cannot_be(arguments, pieces):
    p = parameters()
    with db.Graph(dtype="float64") as graph, pytest.raises(DtypeError) as error:
        elman(*arguments(F.input(graph, [1.0, 2.0, 3.0]), p))
    for piece in (*pieces, "test_roles.py"):
        assert piece in str(error.value)


def test_a_missing_parameter_is_named_where_calls_are_inlined_too(device):
    W = db.Parameter(np.ones((D, D), np.float32), "W").to(device)
    for params, path in ((SimpleNamespace(W=W), r"p\.U"), ({"W": W}, r"say p\['W'\]")):
        with db.Graph(device=device) as graph, pytest.raises(MissingParameterError, match=path):
            elman(F.constant(graph, 1.0, (D,)), D, params)


def test_a_state_that_may_be_parameters_or_nodes_at_random():
    """As `init` of a scan, so in a loop of calls, for each sentence anew."""
    rng, p = np.random.default_rng(1), parameters()
    for _ in range(5):
        choice, found = rng.integers(3, size=3), []
        for way in ("scan", "calls"):
            for parameter in vars(p).values():
                parameter.zero_grad()
            with db.Graph(dtype="float64") as graph:
                losses = []
                for k, n in zip(choice, (2, 1, 3), strict=True):
                    xs = F.input(graph, np.cos(np.arange(n * D)).reshape(n, D))
                    state = (p.start, D, F.tanh(F.parameter(graph, p.other)))[k]
                    if way == "scan":
                        _, state = db.scan(elman, xs, state, p)
                    else:
                        for t in range(n):
                            _, state = elman(xs[t], state, p)
                    losses.append(F.sum(state * state))
                graph.backward(F.sum(losses))
            found.append([dense_gradient(parameter) for parameter in vars(p).values()])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
