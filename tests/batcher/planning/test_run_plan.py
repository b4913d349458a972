"""A backward that makes no gradient says so."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import GraphError, NoGradientError
from tests.messages import raised


def weight():
    return db.Parameter(np.ones((2, 3), np.float32), "weight")


@pytest.mark.parametrize("read", [False, True])
def test_a_loss_that_the_way_to_the_parameters_is_broken_for_raises(read):
    own = weight()
    with db.Graph() as graph:
        hidden = F.linear(F.input(graph, np.ones((4, 3))), own)
        loss = F.mean(F.tanh(F.input(graph, hidden.value)))
        if read:
            _ = loss.value
        for ask in (graph.estimate, graph.backward):
            message = raised(
                NoGradientError, lambda ask=ask: ask(loss), f"backward: {loss.label()} depends on",
                "no parameter that is trained", "no kept node", "fix:", "node.value", "keep()",
            )  # fmt: skip
            assert "frozen" not in message
        assert issubclass(NoGradientError, GraphError) and own.grad is None
        hidden.keep()
        graph.backward(loss + F.sum(hidden))  # the graph is as it was
        assert own.grad.tolist() == [[4, 4, 4]] * 2 and hidden.gradient.all()


def test_a_loss_of_frozen_parameters_raises_and_says_that_they_are():
    own = weight()
    own.frozen = True
    with db.Graph() as graph:
        x = F.input(graph, np.ones((4, 3)))
        loss = F.sum(F.linear(x, own))
        raised(NoGradientError, lambda: graph.backward(loss), "reads is frozen", "rule:")
        raised(NoGradientError, lambda: graph.backward([loss]), "reads is frozen", "rule:")
        x.keep()
        graph.backward(loss)
        assert x.gradient.tolist() == [[2, 2, 2]] * 4


def test_a_kept_loss_has_a_backward():
    own = weight()
    with db.Graph() as graph:
        F.linear(F.input(graph, np.ones((4, 3))), own)
        loss = F.input(graph, 2.0).keep()
        graph.backward(loss)
        assert loss.gradient == 1
