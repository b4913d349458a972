"""All sides of the tree compute one loss and one gradient, for sentences of one word, too."""

import numpy as np
import pytest

from benchmarks.networks import TreeSizes, initial_values
from benchmarks.trees import TreeCorpus
from benchmarks.workloads.tree import DynbatchTree, to_dynbatch
from benchmarks.workloads.tree_by_hand import HandBatchedTree

SIZES = TreeSizes(vocabulary=30, embedding=6, hidden=5, classes=3)
BATCHES = {"ragged": [9, 1, 14, 2], "one": [6], "words": [1, 1]}


def values():
    return initial_values(SIZES, np.random.default_rng(1))


@pytest.fixture(params=BATCHES)
def batch(request):
    lengths = np.array([[words, words] for words in BATCHES[request.param]])
    return TreeCorpus(30, 3).fill(np.random.default_rng(2), lengths)


@pytest.fixture
def expected(batch):
    """Loss and gradients of dynbatch, in float64."""
    return DynbatchTree(SIZES, values()).gradients(batch)


def require_equal(found, expected):
    loss, gradients = found
    assert loss == pytest.approx(expected[0], rel=1e-5)
    named = to_dynbatch(gradients)
    assert named.keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(named[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_tree_by_hand_has_the_gradients_of_the_automatic_one(batch, expected):
    by_hand = HandBatchedTree(SIZES, values())
    require_equal(by_hand.gradients(by_hand.prepare(batch)), expected)


@pytest.mark.parametrize("name", ["LevelTree", "NodeTree"])
def test_the_trees_of_pytorch_have_the_same_gradients(batch, expected, name):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    from benchmarks.peers import pytorch_tree

    peer = getattr(pytorch_tree, name)(SIZES, values())
    loss = peer.forward(peer.prepare(batch))
    loss.backward()
    named = dict(peer.model.named_parameters())
    found = {name: np.zeros(p.shape) if p.grad is None else p.grad for name, p in named.items()}
    require_equal((loss.item(), {name: np.asarray(g) for name, g in found.items()}), expected)
