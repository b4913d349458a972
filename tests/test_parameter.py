"""Copies of parameters are parameters of their own."""

import copy
import pickle

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_and_its_copy_keep_apart_in_one_graph(copied):
    model = models.Linear(3, 2)
    other = copied(model)
    assert np.array_equal(other.weight.value, model.weight.value)
    for parameter in other.parameters():
        parameter.value[...] = 0

    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (2, 3))
        found, zeros = model(x).value, other(x).value
    assert found.any() and not zeros.any()
    both = optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    assert len(list(both.named_parameters())) == 4


def test_a_copy_keeps_name_gradient_and_frozen_and_ties():
    model = models.Linear(3, 2)
    model.again = model.weight
    model.bias.frozen = True
    model.weight.grad = np.ones((2, 3), np.float32)
    other = copy.deepcopy(model)
    assert other.again is other.weight and other.bias.frozen
    assert other.weight.name == model.weight.name
    assert np.array_equal(other.weight.grad, model.weight.grad)
    assert other.weight.grad is not model.weight.grad
