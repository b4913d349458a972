"""A frozen weight or bias gets no gradient, and does not keep the other from its own."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_gets_no_gradient(frozen):
    weight, bias = db.Parameter(np.ones((2, 3)), "weight"), db.Parameter(np.zeros(2), "bias")
    parameters = {"weight": weight, "bias": bias}
    parameters.pop(frozen).frozen = True
    with db.Graph(dtype="float64") as graph:
        y = F.linear(F.input(graph, np.ones((4, 3))), weight, bias)
        graph.backward(F.sum(y))
    assert {"weight": weight, "bias": bias}[frozen].grad is None
    (trained,) = parameters.values()
    np.testing.assert_array_equal(trained.grad, np.full(trained.shape, 4.0))
