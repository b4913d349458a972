"""Tree-LSTMs: PyTorch's values and gradients of the formulas, batching, exact counts."""

import sys

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DtypeError
from dynbatch.testing import check_batching, check_gradient
from tests.marks import exhaustive
from tests.torch_parity import assert_equals_torch, import_torch

INPUT, HIDDEN = 3, 4

# By number of tokens, so that a sentence's rows say which tree is meant.
PAIRS = {
    1: [],
    2: [(1, 0)],
    4: [(0, 1), (4, 2), (5, 3)],
    5: [(3, 4), (1, 2), (6, 5), (0, 7)],
}
HEADS = {1: [-1], 2: [1, -1], 5: [1, -1, 1, 1, 1], 6: [3, 0, 3, -1, 2, 2], 7: range(-1, 6)}
TREES = {models.BinaryTreeLSTM: PAIRS, models.ChildSumTreeLSTM: HEADS}
each_model = pytest.mark.parametrize("kind", TREES)


def rows(count):
    return np.random.default_rng(0).standard_normal((count, INPUT))


def chunked_sigmoid(torch, gates, parts):
    *gates, u = gates.chunk(parts)
    return [torch.sigmoid(gate) for gate in gates], torch.tanh(u)


def binary_reference(x, pairs, weights):
    """Node by node, as the formulas are written."""
    torch = import_torch()
    w, b_x, u_left, u_right, b = weights
    states = []
    for row in x:
        (i, o), u = chunked_sigmoid(torch, w @ row + b_x, 3)
        c = i * u
        states.append((o * torch.tanh(c), c))
    for left, right in pairs:
        (h_l, c_l), (h_r, c_r) = states[left], states[right]
        (i, f_l, f_r, o), u = chunked_sigmoid(torch, u_left @ h_l + u_right @ h_r + b, 5)
        c = i * u + f_l * c_l + f_r * c_r
        states.append((o * torch.tanh(c), c))
    return torch.stack([h for h, _ in states]), states[-1][0]


def child_sum_reference(x, heads, weights):
    """From the root down, by recursion."""
    torch = import_torch()
    w, u_h, b, w_f, u_f, b_f = weights
    found = {}

    def state(node):
        children = [state(child) for child, head in enumerate(heads) if head == node]
        h_sum = sum([h for h, _ in children], torch.zeros(HIDDEN))
        (i, o), u = chunked_sigmoid(torch, w @ x[node] + u_h @ h_sum + b, 3)
        c = i * u
        for h_k, c_k in children:
            c = c + torch.sigmoid(w_f @ x[node] + u_f @ h_k + b_f) * c_k
        found[node] = (o * torch.tanh(c), c)
        return found[node]

    root = state(list(heads).index(-1))
    return torch.stack([found[node][0] for node in range(len(x))]), root[0]


REFERENCES = {models.BinaryTreeLSTM: binary_reference, models.ChildSumTreeLSTM: child_sum_reference}


@each_model
def test_values_and_gradients_equal_torch(kind):
    model, trees = kind(INPUT, HIDDEN), TREES[kind]
    names = [name for name, _ in model.named_parameters()]

    def build(x, *weights):
        for name, weight in zip(names, weights, strict=True):
            setattr(model, name, weight)
        return model(x, trees[x.shape[0]])

    def reference(x, *weights):
        return REFERENCES[kind](x, trees[len(x)], weights)

    shapes = [parameter.shape for parameter in model.parameters()]
    assert_equals_torch(build, reference, [(count, INPUT) for count in trees], shapes)


@each_model
@pytest.mark.parametrize(("count", "most"), [(5, 3), exhaustive(1, 20), exhaustive(5, 20)])
def test_gradients_equal_differences(kind, count, most):
    model = kind(INPUT, HIDDEN, rng=0)

    def hs_and_root(graph, x):
        return model(x, TREES[kind][count])

    check_gradient(hs_and_root, shapes=[(count, INPUT)], parameters=model, most=most)


@each_model
def test_a_mini_batch_equals_its_trees_alone(kind):
    model, rng = kind(INPUT, HIDDEN, rng=0), np.random.default_rng(0)
    examples = [(rng.standard_normal((count, INPUT)), tree) for count, tree in TREES[kind].items()]

    def hs_and_root(graph, x, tree):
        return model(x, tree)

    check_batching(hs_and_root, examples, parameters=model)


def test_children_have_no_order_in_the_child_sum():
    model, x = models.ChildSumTreeLSTM(INPUT, HIDDEN), rows(4)
    with db.Graph() as graph:
        given = [F.input(graph, x[order]) for order in ([0, 1, 2, 3], [0, 3, 1, 2])]
        one, other = [model(xs, [-1, 0, 0, 0])[1].value for xs in given]
    assert np.allclose(one, other, atol=1e-6)


def test_children_have_an_order_in_the_binary_tree():
    model, x = models.BinaryTreeLSTM(INPUT, HIDDEN), rows(2)
    with db.Graph() as graph:
        one, other = [model(F.input(graph, x), [pair])[1].value for pair in ((0, 1), (1, 0))]
    assert np.abs(one - other).max() > 1e-3


@each_model
def test_a_tree_may_be_deeper_than_the_recursion_limit(kind):
    count = sys.getrecursionlimit() + 100
    chain = {
        models.BinaryTreeLSTM: [(0, 1), *[(count + k, k + 2) for k in range(count - 2)]],
        models.ChildSumTreeLSTM: np.arange(count) - 1,
    }
    model = kind(INPUT, HIDDEN)
    with db.Graph() as graph:
        _, root = model(F.constant(graph, 1.0, (count, INPUT)), chain[kind])
        graph.backward(F.sum(root))
    assert all(np.abs(parameter.grad).max() > 0 for parameter in model.parameters())


@each_model
def test_a_model_in_float64_runs_in_float64(kind):
    model = kind(INPUT, HIDDEN).astype("float64")
    with db.Graph(dtype="float64") as graph:
        hs, _ = model(F.constant(graph, 1.0, (5, INPUT)), TREES[kind][5])
        assert hs.value.dtype == np.float64


def test_a_state_may_be_composed_by_hand():
    model = models.BinaryTreeLSTM(INPUT, HIDDEN)
    with db.Graph() as graph:
        xs = F.input(graph, rows(3))
        leaves = [model.leaf(xs[k]) for k in range(3)]
        h, _ = model.compose(model.compose(leaves[0], leaves[1]), leaves[2])
        _, root = model(xs, [(0, 1), (3, 2)])
        assert np.array_equal(h.value, root.value)


def test_what_a_mini_batch_of_binary_trees_costs():
    """Trees of 1, 2, 4 and 5 leaves, of heights 0, 1, 3 and 3: a level's operators run together."""
    model = models.BinaryTreeLSTM(INPUT, HIDDEN, rng=0)
    with db.Graph() as graph:
        xs = [F.input(graph, rows(count)) for count in PAIRS]
        roots = [model(x, pairs)[1] for x, pairs in zip(xs, PAIRS.values(), strict=True)]
        graph.backward(F.sum(F.stack(roots)))
        found = graph.statistics
    # The inputs, the leaves, 3 levels, the stack of roots and the sum are a batch each.
    assert (found.nodes, found.batches) == (26, 7)
    assert (found.launches, found.copied_bytes) == (164, 0)


def test_one_state_in_place_of_a_list_of_children_is_refused():
    tree_lstm = models.ChildSumTreeLSTM(INPUT, HIDDEN)
    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (INPUT,))
        child = tree_lstm.compose(x)
        with pytest.raises(
            DtypeError, match=r"(?s)children is one state.*fix:  compose\(x, \[state"
        ):
            tree_lstm.compose(x, child)
