import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.testing import Probe
from dynbatch.testing.probe import probe, random_like, variable


def test_the_loss_is_the_weighted_sum_and_its_gradient_the_weights():
    arrays = [np.arange(6.0).reshape(2, 3), np.array(4.0), np.zeros((0, 3)), np.array([1.0, 2.0])]
    with db.Graph(dtype="float64") as graph:
        nodes = [F.input(graph, x).keep() for x in arrays]
        weights = random_like(nodes, 0)
        loss = probe(nodes, weights)
        assert loss.value == pytest.approx(
            sum((a * w).sum() for a, w in zip(arrays, weights, strict=True))
        )
        graph.backward(loss)
        for node, weight in zip(nodes, weights, strict=True):
            np.testing.assert_allclose(node.gradient, weight)


def test_weights_of_another_size_raise():
    with db.Graph() as graph, pytest.raises(ShapeError, match="2 weights for 3 elements"):
        Probe(F.input(graph, [1.0, 2.0, 3.0]), weights=np.ones(2))


def test_random_weights_are_the_same_for_the_same_seed():
    with db.Graph() as graph:
        nodes = [F.input(graph, np.ones((2, 3)))]
        a, b, c = (random_like(nodes, *seed)[0] for seed in ((1, 2), (1, 2), (1, 3)))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_a_variable_draws_the_same_mask_whatever_its_content():
    masks = []
    for content in (1.0, 2.0):
        with db.Graph(seed=1) as graph:
            x = variable(graph, np.full((5, 5), content), 0)
            masks.append(F.dropout(x, 0.5).value != 0)
    assert np.array_equal(*masks)
