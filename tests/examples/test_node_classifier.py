"""Classes of nodes: what the scores depend on, and that batching changes nothing."""

import numpy as np

import dynbatch as db
from dynbatch.testing import check_batching
from examples.trees.node_classifier import LabelledTree, NodeClassifier
from examples.trees.training import TreeSettings, accuracy, fit

#     0
#    / \
#   1   3      node 2 below 1
#   2
HEADS = np.array([-1, 0, 1, 0])


def tree(ids, asked=(0, 1, 2, 3), labels=(0, 0, 0, 0)):
    return LabelledTree(np.array([ids, ids]), HEADS, np.array(asked), np.array(labels))


def scores(model, given):
    with db.Graph() as graph:
        return model.scores(graph, given).value


def test_a_node_is_scored_by_what_is_below_it_and_below_its_head():
    model = NodeClassifier((5, 5), 3, 4, 6)
    before = scores(model, tree([0, 0, 0, 0]))
    assert before.shape == (4, 3)
    changed = np.abs(scores(model, tree([0, 0, 1, 0])) - before).max(axis=1) > 1e-7
    assert changed.tolist() == [True, True, True, True]  # the root is above all but node 2
    changed = np.abs(scores(model, tree([0, 0, 0, 1])) - before).max(axis=1) > 1e-7
    assert changed.tolist() == [True, True, False, True]


def test_a_vector_of_its_own_is_above_the_root():
    model = NodeClassifier((5, 5), 3, 4, 6)
    before = scores(model, tree([0, 1, 2, 3]))
    model.above_root.assign(np.ones(6))
    changed = np.abs(scores(model, tree([0, 1, 2, 3])) - before).max(axis=1) > 1e-7
    assert changed.tolist() == [True, False, False, False]


def test_only_what_is_asked_is_scored():
    model = NodeClassifier((5, 5), 3, 4, 6)
    every = scores(model, tree([0, 1, 2, 3]))
    assert np.allclose(scores(model, tree([0, 1, 2, 3], [3, 1], [0, 0])), every[[3, 1]], atol=1e-6)


def test_a_mini_batch_equals_its_trees_alone():
    model = NodeClassifier((5, 5), 3, 4, 6)
    check_batching(
        lambda graph, given: model.scores(graph, given),
        [(tree([0, 1, 2, 3]),), (tree([4, 4, 0, 1], [2], [1]),)],
        parameters=model,
    )


def test_accuracy_is_the_share_of_all_labels():
    class Always(NodeClassifier):
        def scores(self, graph, given):
            return db.nodes.input(graph, np.eye(3)[np.ones(len(given.labels), int)])

    trees = [tree([0, 0, 0, 0], [0, 1, 2], [1, 1, 0]), tree([0, 0, 0, 0], [0], [1])]
    assert accuracy(Always((5, 5), 3, 4, 6), trees) == 0.75


def test_speed_says_what_padding_would_cost():
    small = LabelledTree(np.zeros((2, 1), int), np.array([-1]), np.array([0]), np.array([0]))
    model = NodeClassifier((5, 5), 3, 4, 6)
    trees = [tree([0, 0, 0, 0]), small]
    speed = fit(model, trees, TreeSettings(epochs=2, batch_size=2, quiet=True))
    assert "nodes per second" in speed and "would have 1.60 times the nodes" in speed
