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


@db.cell
def quotient(x, h, p):
    return (x + h) / p.by, h * 0.0


def in_a_cell(x, number):
    return db.scan(quotient, x, init=x.width, params=SimpleNamespace(by=number))[0]


@pytest.mark.parametrize("divide", [operator.truediv, in_a_cell], ids=["operator", "in a cell"])
def test_a_quotient_by_a_number_is_no_product_with_its_reciprocal(divide, device):
    numbers = [0.0, 1e-39, 3.0, np.inf]
    x = np.array([[1.0, -1.0, 0.0, 1e-30, 5.0]], np.float32)
    with db.Graph(device=device) as graph:
        node = F.input(graph, x).keep()
        found = [divide(node, number).value for number in numbers]
    with np.errstate(all="ignore"):
        for number, y in zip(numbers, found, strict=True):
            np.testing.assert_array_equal(y, x / np.float32(number), err_msg=str(number))


def test_a_number_over_a_node_is_no_product_with_its_reciprocal(device):
    x = np.array([1e-39, 0.0, 3.0, -np.inf], np.float32)
    with db.Graph(device=device) as graph:
        node = F.input(graph, x).keep()
        quotients = [number / node for number in (1e-30, 5.0, 0.0)]
        found = [quotient.value for quotient in quotients]
    with np.errstate(all="ignore"):
        for number, y in zip((1e-30, 5.0, 0.0), found, strict=True):
            np.testing.assert_array_equal(y, np.float32(number) / x)


def test_quotients_by_any_numbers_are_one_batch():
    with db.Graph() as graph:
        found = [F.input(graph, [1.0] * n) / (n + 0.5) for n in range(1, 5)]
        found += [(n + 0.5) / F.input(graph, [1.0] * n) for n in range(1, 5)]
        graph.values(found)
        (plan,) = graph.plans
    assert [len(step.nodes) for step in plan.steps] == [8, 4, 4]


def test_powers_at_zero_and_of_negative_numbers_are_pytorchs():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    a, b = np.meshgrid([0.0, -2.0, 2.0, 1.0], [0.0, 2.0, -1.0, 0.5, 3.0])
    with db.Graph(dtype="float64") as graph, np.errstate(all="ignore"):
        nodes = [F.input(graph, x).keep() for x in (a, b)]
        y = (nodes[0] ** nodes[1]).keep()
        graph.backward(F.sum(F.where(np.isfinite(a**b), y, 0)))
        found = [y.value, *[x.gradient for x in nodes]]
    tensors = [torch.tensor(x, requires_grad=True) for x in (a, b)]
    expected = tensors[0] ** tensors[1]
    torch.where(expected.isfinite(), expected, 0).sum().backward()
    for ours, theirs in zip(found, [expected, *[x.grad for x in tensors]], strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12)


def test_a_parameter_may_be_base_or_exponent():
    p = db.Parameter(np.array([0.5, 2.0, 1.5]), "exponent")
    x = np.array([[1.0, 2.0, 3.0], [4.0, 0.5, 6.0]])
    for power in (lambda graph, x: x**p, lambda graph, x: p**x):
        db.testing.check_gradient(power, inputs=[x], parameters=[p])
