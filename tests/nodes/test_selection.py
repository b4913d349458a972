"""Comparisons, the greater and the smaller of two values, and a choice by mask."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError
from tests.torch_parity import import_torch

SPECIAL = np.array([-np.inf, -2.0, -0.0, 0.0, 2.0, np.inf, np.nan])
COMPARISONS = {
    F.greater: np.greater,
    F.greater_equal: np.greater_equal,
    F.less: np.less,
    F.less_equal: np.less_equal,
    F.equal: np.equal,
    F.not_equal: np.not_equal,
}
each_comparison = pytest.mark.parametrize(
    ("compare", "expected"), COMPARISONS.items(), ids=lambda f: f.__name__
)


@each_comparison
def test_a_comparison_is_one_where_it_holds_and_zero_elsewhere(compare, expected):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    with db.Graph() as graph:
        nodes = [F.input(graph, x) for x in (a, b)]
        found = [compare(*nodes), compare(nodes[0], 2.0), compare(2.0, nodes[0])]
        values = graph.values(found)
    for value, holds in zip(values, [expected(a, b), expected(a, 2), expected(2, a)], strict=True):
        np.testing.assert_array_equal(value, holds.astype(np.float32))


def test_operators_compare_nodes_and_numbers():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    with db.Graph() as graph:
        a, b = F.input(graph, x), F.input(graph, y)
        found = [a > b, a >= b, a < b, a <= b, a > 2, 2 >= a, np.float32(2) < a]
        expected = [x > y, x >= y, x < y, x <= y, x > 2, x <= 2, x > 2]
        for node, holds in zip(found, expected, strict=True):
            assert node.value.tolist() == holds.tolist()
        with pytest.raises(DtypeError, match="no truth value"):
            bool(a > b)
        with pytest.raises(DtypeError, match="a node or a number expected"):
            _ = x > a


def test_a_comparison_passes_no_gradient_on():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [-1.0, 2.0]).keep()
        graph.backward(F.sum(x * F.greater(x, 0)))
        assert x.gradient.tolist() == [0, 1]


def test_equal_values_share_the_gradient_as_in_pytorch():
    torch = import_torch()
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    for ours, theirs in ((F.maximum, torch.maximum), (F.minimum, torch.minimum)):
        with db.Graph(dtype="float64") as graph:
            nodes = [F.input(graph, x).keep() for x in (a, b)]
            y = ours(*nodes).keep()
            graph.backward(F.sum(F.where(np.isfinite(y.value), y, 0)))
            found = [y.value, *[x.gradient for x in nodes]]
        tensors = [torch.tensor(x, requires_grad=True) for x in (a, b)]
        expected = theirs(*tensors)
        torch.where(expected.isfinite(), expected, 0).sum().backward()
        for value, tensor in zip(found, [expected, *[x.grad for x in tensors]], strict=True):
            np.testing.assert_array_equal(value, tensor.detach().numpy())


@db.cell
def safe_root(x, h, p):
    y = x + h
    return F.where(F.greater(y, 0), F.sqrt(y), y * 0.0), h * 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_a_cell", [False, True])
def test_the_side_that_was_not_chosen_gives_no_nan(in_a_cell, dtype, device):
    with db.Graph(dtype=dtype, device=device) as graph:
        x = F.input(graph, [[-4.0, 4.0, 0.0]]).keep()
        if in_a_cell:
            y, _ = db.scan(safe_root, x, init=3)
        else:
            y = F.where(F.greater(x, 0), F.sqrt(x), x * 0.0)
        graph.backward(F.sum(F.concat([y.keep()], dim=0)))
        np.testing.assert_array_equal(y.value, [[0, 2, 0]])
        # sqrt passes 0 · inf = NaN on at 0, as in PyTorch; at -4 its own value is NaN
        assert x.gradient[0, 1] == 0.25


def test_the_gradient_of_a_choice_is_exactly_zero_on_the_other_side():
    with db.Graph() as graph:
        a = F.input(graph, [np.nan, 1.0, np.inf]).keep()
        b = F.input(graph, [5.0, np.nan, 6.0]).keep()
        y = F.where([False, True, False], a, b).keep()
        graph.backward(F.sum(y))
        assert y.value.tolist() == [5, 1, 6]
        assert a.gradient.tolist() == [0, 1, 0] and b.gradient.tolist() == [1, 0, 1]


def test_a_mask_is_an_array_a_node_or_one_boolean():
    x = np.array([[1.0, -2.0], [-3.0, 4.0]])
    with db.Graph() as graph:
        node = F.input(graph, x)
        for mask in (x > 0, (x > 0).tolist(), F.greater(node, 0), F.input(graph, x > 0)):
            np.testing.assert_array_equal(F.where(mask, node, 0).value, np.maximum(x, 0))
        assert F.where(True, node, 0).value.tolist() == x.tolist()
        assert F.where(False, node, 7).value.tolist() == [[7, 7], [7, 7]]
        assert F.where(F.greater(node, 0), 1, -1).value.tolist() == np.sign(x).tolist()


def test_vectors_and_columns_are_repeated_over_the_tokens():
    x, vector = np.arange(6.0).reshape(3, 2), np.array([10.0, 20.0])
    column = np.array([[True], [False], [True]])
    with db.Graph() as graph:
        node, repeated = F.input(graph, x), F.input(graph, vector)
        np.testing.assert_array_equal(
            F.where(column, node, repeated).value, np.where(column, x, vector)
        )
        np.testing.assert_array_equal(F.maximum(repeated, node).value, np.maximum(x, vector))
        np.testing.assert_array_equal(F.less(node, repeated).value, x < vector)


def test_all_of_any_size_are_one_batch():
    with db.Graph() as graph:
        xs = [F.input(graph, np.ones((n, 1 + n % 3))) for n in (1, 4, 2)]
        graph.values([F.maximum(x, 0.5 * x.rows) for x in xs])
        graph.values([F.where(np.ones(x.shape, bool), x, x) for x in xs])
        assert [len(step.nodes) for plan in graph.plans for step in plan.steps] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda x: F.maximum(x, np.ones(3)), DtypeError, "a node or a number expected"),
        (lambda x: F.greater(x, "1"), DtypeError, "a node or a number expected"),
        (lambda x: F.where(np.ones(2, bool), x, 0), ShapeError, "cannot be repeated"),
        (lambda x: F.where("mask", x, 0), DtypeError, "numbers"),
        (lambda x: F.where(True, 1.0, 2.0), DtypeError, "at least one of mask, a and b"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_users_line(build, error, message):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 3)))
        with pytest.raises(error, match=message) as caught:
            build(x)
        assert "test_selection.py" in str(caught.value)
