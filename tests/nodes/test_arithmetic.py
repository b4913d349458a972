"""Parameters beside nodes in sums, differences, products and quotients."""

import operator
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F


def scale():
    return db.Parameter(np.array([0.5, 2.0, -1.5]), "scale")


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_parameter_beside_a_node_is_its_value_and_gets_a_gradient(operation, swapped):
    p = scale()

    def with_parameter(graph, x):
        return operation(p, x) if swapped else operation(x, p)

    x = np.array([[1.0, 2.0, 3.0], [4.0, 0.5, 6.0]])
    with db.Graph(dtype="float64") as graph:
        found = with_parameter(graph, F.input(graph, x)).value
    np.testing.assert_allclose(found, operation(p.value, x) if swapped else operation(x, p.value))
    db.testing.check_gradient(with_parameter, inputs=[x], parameters=[p])
    db.testing.check_batching(with_parameter, [x, x[:1], 2 * x[:0]], parameters=[p])


def test_a_parameter_stands_in_the_arithmetic_of_a_cell():
    @db.cell
    def peephole(x, c, p):
        f = F.sigmoid(x + p.scale * c - p.scale)
        c = f * c + (1 - f) * F.tanh(x)
        return c, c

    p = SimpleNamespace(scale=scale())

    def network(graph, x):
        return db.scan(peephole, x, init=3, params=p)[0]

    db.testing.check_gradient(network, shapes=[(4, 3)], parameters=[p.scale])
    db.testing.check_batching(network, shapes=[[(4, 3)], [(0, 3)], [(2, 3)]], parameters=[p.scale])
