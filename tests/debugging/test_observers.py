"""`check` and `guard` wrap each other: the first fault that either sees ends the run."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.debugging.check import Check
from dynbatch.debugging.guard import Guard
from dynbatch.errors import CheckError, NumericError
from dynbatch.nodes.unary.node_types import Tanh
from tests.messages import raised
from tests.reference_models import Tagger, gradients, sentences, train

BOTH = {"check": True, "guard": True}


@pytest.fixture
def wrong_tanh(monkeypatch):
    """The first element of each batch of `tanh` is wrong, if the batch has several nodes."""
    forward = Tanh.forward_batch.__func__

    def wrong(node_type, batch, y, *xs):
        forward(node_type, batch, y, *xs)
        if len(batch.nodes) > 1:
            y.flat[0] += 0.5

    monkeypatch.setattr(Tanh, "forward_batch", classmethod(wrong))


def test_a_healthy_graph_gives_the_same_as_without(device):
    plain, observed = Tagger(), Tagger()
    for parameter in [*plain.parameters(), *observed.parameters()]:
        parameter.to(device)
    batch = sentences([3, 1, 7, 0, 2])
    losses = [train(plain, batch, device=device), train(observed, batch, device=device, **BOTH)]
    assert losses[0] == losses[1]
    for parameter in [*plain.parameters(), *observed.parameters()]:
        parameter.to("cpu")
    for found, expected in zip(gradients(observed), gradients(plain), strict=True):
        assert np.array_equal(found, expected)


def test_a_wrong_kernel_before_a_number_that_is_not_finite(wrong_tanh):
    with db.Graph(**BOTH) as graph:
        xs = [F.tanh(F.input(graph, [0.0, 1.0])) for _ in range(2)]
        logs = [F.log(F.tanh(x) - 2.0) for x in xs]
        raised(CheckError, graph.forward, f"{xs[0].label()}, sentence 0: its value is wrong")
        assert logs[0]._block is None


def test_a_number_that_is_not_finite_before_a_wrong_kernel(wrong_tanh):
    with db.Graph(**BOTH) as graph:
        logs = [F.log(F.input(graph, [0.0, 1.0])) for _ in range(2)]
        tanhs = [F.tanh(x) for x in logs]
        message = raised(NumericError, graph.forward, f"{logs[0].label()}, sentence 0: its value")
        assert f"made at {__file__}" in message
        assert tanhs[0]._block is None


def test_a_wrong_kernel_that_makes_a_nan_is_a_wrong_kernel(monkeypatch):
    def wrong(node_type, batch, y, *xs):
        y.values[...] = np.nan if len(batch.nodes) > 1 else 1.0

    monkeypatch.setattr(Tanh, "forward_batch", classmethod(wrong))
    with db.Graph(**BOTH) as graph:
        xs = [F.tanh(F.input(graph, [0.0, 1.0])) for _ in range(2)]
        raised(CheckError, graph.forward, f"{xs[0].label()}, sentence 0: its value is wrong")


def test_a_gradient_that_overflows_is_added_right_and_refused():
    parameter = db.Parameter(np.zeros(2, np.float32), name="w")
    parameter.grad = np.full(2, 3e38, np.float32)
    with db.Graph(**BOTH) as graph:
        loss = F.sum(F.parameter(graph, parameter) * 3e38)
        raised(NumericError, lambda: graph.backward(loss), "the gradient of parameter 'w'")


def test_they_are_wrapped_one_around_the_other():
    with db.Graph(**BOTH) as graph:
        guard = graph._executor._actions
        assert isinstance(guard, Guard) and isinstance(guard.upstream, Check)


def test_a_graph_without_gradients_holds_no_second_run():
    with db.Graph(check=True, grad=False) as graph:
        assert F.tanh(F.input(graph, [0.0])).value == 0.0
        assert not graph._executor._actions._checks


def test_a_closed_graph_holds_no_second_run():
    with db.Graph(check=True) as graph:
        graph.backward(F.sum(F.tanh(F.input(graph, [1.0]).keep())))
        check = graph._executor._actions
        assert check._checks
    assert not check._checks
