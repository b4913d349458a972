"""A node type of the user's has gradients of gradients once a rule is entered for it."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.differentiation import parameter_rule, rule
from dynbatch.errors import ArgumentError, GraphError
from dynbatch.testing import check_batching, check_gradient


class Weighted(db.Operation):
    """y = sin(x) ⊙ w + z."""

    __slots__ = ("weight",)
    static = ("weight",)
    retains = db.Retain(inputs=(0,))

    def infer_shape(self, x, z):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x, z):
        y.values[...] = np.sin(x.values) * batch.first.weight.value + z.values

    @classmethod
    def backward_batch(cls, batch, dy, dx, dz):
        x = batch.input(0).values
        weight = batch.first.weight
        batch.parameter_gradients().add(weight, (dy.values * np.sin(x)).sum(axis=0))
        if dx is not None:
            dx.values[...] = dy.values * np.cos(x) * weight.value
        if dz is not None:
            dz.values[...] = dy.values


class Heavier(Weighted):
    """A subclass, which needs a rule of its own."""

    __slots__ = ()


made = []


@rule(Weighted)
def gradients_of_weighted(y, dy):
    x, _ = y.inputs

    def of_x():
        made.append("x")
        return F.cos(x) * (dy * y.weight)

    def of_z():
        made.append("z")
        return dy

    return of_x, of_z


@parameter_rule(Weighted)
def gradient_of_weight(y, dy):
    return {"weight": lambda: F.sum(dy * F.sin(y.inputs[0]), dim=0)}


WEIGHT = db.Parameter(np.array([0.5, -1.0, 2.0]))


def penalty(graph, x):
    def energy(rows):
        return F.sum(F.tanh(Weighted(rows, rows * rows, weight=WEIGHT)))

    return F.sum(db.grad(energy)(x) ** 2)


def test_its_second_derivatives_equal_differences_and_batch():
    check_gradient(penalty, shapes=[(5, 3)], parameters=[WEIGHT])
    check_batching(penalty, [(np.ones((n, 3)),) for n in (2, 0, 4)], parameters=[WEIGHT])


def test_the_gradient_of_its_parameter_is_a_node():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [[0.5, 1.0, 2.0], [0.1, 0.2, 0.3]])
        (dw,) = db.grad(lambda x: F.sum(Weighted(x, x, weight=WEIGHT)), wrt=[WEIGHT])(x)
        np.testing.assert_allclose(dw.value, np.sin(x.value).sum(axis=0), rtol=1e-12)


def test_only_gradients_that_are_asked_for_are_made():
    made.clear()
    with db.Graph(dtype="float64") as graph:
        x, z = F.input(graph, np.ones((2, 3))), F.input(graph, np.ones((2, 3)))
        db.grad(lambda x, z: F.sum(Weighted(x, z, weight=WEIGHT)), wrt=1)(x, z)
    assert made == ["z"]


def test_a_type_without_a_rule_is_told_how_to_write_one():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((2, 3)))
        with pytest.raises(GraphError, match=r"differentiation\.rule\(Heavier\)"):
            db.grad(lambda x: F.sum(Heavier(x, x, weight=WEIGHT)))(x)
        with pytest.raises(GraphError, match=r"parameter_rule"):
            db.grad(lambda x: F.sum(Heavier(x, x, weight=WEIGHT)), wrt=WEIGHT)(x)


@pytest.mark.parametrize("enter", [rule, parameter_rule])
def test_rules_are_for_types_of_nodes(enter):
    for wrong in (penalty, "Weighted", db.Parameter, 3):
        with pytest.raises(ArgumentError, match="a rule is entered for types of nodes"):
            enter(wrong)
