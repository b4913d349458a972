"""Trees given as numbers: orders, and what is refused."""

import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.trees import bottom_up
from dynbatch.models.trees import checked_pairs, tree_of_heads


def rows(graph, count):
    return F.constant(graph, 0.0, (count, 2))


def refused(check, count, tree):
    """The text of the error."""
    with db.Graph() as graph, pytest.raises(ShapeError) as caught:
        check("tree", rows(graph, count), tree)
    return str(caught.value)


def test_every_node_comes_after_its_children():
    with db.Graph() as graph:
        tree = tree_of_heads("tree", rows(graph, 6), [3, 0, 3, -1, 2, 2])
    assert tree.order.tolist() == [1, 4, 5, 0, 2, 3] and tree.root == 3
    assert tree.counts.tolist() == [0, 0, 0, 1, 2, 2]
    assert tree.order[tree.children].tolist() == [1, 4, 5, 0, 2]
    assert tree.parents.tolist() == [0, 2, 2, 3, 3]


def test_trees_in_c_are_those_of_python():
    rng = np.random.default_rng(0)
    for count in [*range(1, 12)] * 20:
        heads = rng.integers(-1, count + (count == 3), count)
        if count % 2:  # surely a tree
            below = rng.permutation(count)
            heads[below] = [-1, *[below[rng.integers(k)] for k in range(1, count)]]
        tree = bottom_up(heads)
        with reference_only():
            expected = bottom_up(heads)
        assert (tree is None) == (expected is None) and (tree is not None or not count % 2)
        assert tree is None or all(map(np.array_equal, tree, expected))


def test_a_tree_as_deep_as_it_has_nodes_needs_no_recursion():
    count = 5000
    with db.Graph() as graph:
        tree = tree_of_heads("tree", rows(graph, count), np.arange(count) - 1)
    assert tree.order.tolist() == list(range(count))[::-1]


@pytest.mark.parametrize(
    ("count", "heads", "says"),
    [
        (3, [1, -1], "2 heads for 3 rows"),
        (3, [2, 0, 2], "no node has head -1.* subtract 1"),
        (3, [1, -1, 3], "node 2 has head 3.* 0 <= head < 3"),
        (3, [1, -1, -2], "node 2 has head -2"),
        (4, [-1, 0, -1, 2], "nodes 0, 2 have head -1.* exactly one node is the root"),
        (5, [-1, 2, 3, 1, 3], "nodes 1, 2, 3 are a cycle"),
        (3, [-1, 1, 0], "nodes 1 are a cycle"),
        (0, [], r"xs has shape \(0, 2\)"),
    ],
)
def test_heads_that_are_no_tree_are_refused(count, heads, says):
    message = refused(tree_of_heads, count, heads)
    assert re.search(says, message, re.DOTALL) and "made at" in message and "test_trees" in message


def test_of_a_long_cycle_the_first_nodes_are_named():
    heads = [-1, *range(2, 21), 1]
    assert "nodes 1, 2, 3, 4, 5, 6, 7, 8, … (20 of them) are a cycle" in refused(
        tree_of_heads, 21, heads
    )


@pytest.mark.parametrize(
    ("count", "pairs", "says"),
    [
        (3, [(0, 1)], r"1 pairs for 3 leaves.* T - 1 pairs \(left, right\), here 2"),
        (1, [(0, 0)], "1 pairs for 1 leaves"),
        (3, [(0, 1), (2,)], "2 pairs, one of 1 numbers"),
        (3, [(0, 1), (1, 2)], r"pair 1, \(1, 2\), joins node 1 a second time.* node 3 \+ j"),
        (3, [(0, 4), (1, 2)], r"pair 0, \(0, 4\), joins node 4.* joins nodes 0 … 2"),
        (3, [(0, 3), (1, 2)], "joins node 3"),
        (3, [(0, -1), (1, 2)], "joins node -1"),
        (2, [(1, 1)], "joins node 1 a second time"),
        (0, [], r"xs has shape \(0, 2\)"),
    ],
)
def test_pairs_that_are_no_tree_are_refused(count, pairs, says):
    assert re.search(says, refused(checked_pairs, count, pairs), re.DOTALL)


def test_pairs_may_be_an_array_and_one_leaf_has_none():
    with db.Graph() as graph:
        array = np.array([(1, 2), (0, 3)])
        assert checked_pairs("tree", rows(graph, 3), array) == [(1, 2), (0, 3)]
        assert checked_pairs("tree", rows(graph, 1), []) == []
        assert checked_pairs("tree", rows(graph, 1), array[:0]) == []


@pytest.mark.parametrize("model", [models.BinaryTreeLSTM, models.ChildSumTreeLSTM])
def test_models_refuse_by_their_own_name(model):
    with db.Graph() as graph:
        with pytest.raises(ShapeError, match=model.__name__):
            model(2, 3)(rows(graph, 2), [0, 1, 2])
        with pytest.raises(DtypeError, match=f"{model.__name__}: a node expected"):
            model(2, 3)(np.zeros((2, 2)), [-1, 0])
