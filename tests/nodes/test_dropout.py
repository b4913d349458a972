import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.testing import check_batching, check_gradient

LENGTHS = [3, 0, 1, 9, 2]
SENTENCES = [np.random.default_rng(k).standard_normal((n, 4)) for k, n in enumerate(LENGTHS)]


def masks(order, policy="by_agenda", seed=0):
    """The kept elements of each sentence, in a mini-batch of those in `order`."""
    with db.Graph(seed=seed, policy=policy) as graph:
        nodes = {k: F.dropout(F.input(graph, SENTENCES[k])) for k in order}
        return {k: (node.value != 0).tolist() for k, node in nodes.items()}


def test_a_mask_does_not_depend_on_the_mini_batch():
    expected = masks(range(5))
    assert any(False in row for row in expected[3]) and any(True in row for row in expected[3])
    for policy in POLICIES:
        assert masks([4, 2, 0, 3, 1], policy) == expected
    for k in range(5):
        assert masks([k]) == {k: expected[k]}


def test_a_mask_depends_on_the_seed_and_on_the_sentence():
    assert masks([3], seed=1)[3] != masks([3], seed=0)[3]
    with db.Graph(seed=0) as graph:
        a, b = [F.dropout(F.input(graph, np.full((9, 4), x))).value != 0 for x in (1.0, 2.0)]
        assert (a != b).any()


def test_two_dropouts_of_one_value_differ():
    with db.Graph(seed=0) as graph:
        x = F.input(graph, np.ones((9, 4)))
        assert (F.dropout(x).value != F.dropout(x).value).any()


def test_batches_and_differentiates():
    check_batching(lambda graph, x: F.dropout(x, 0.4), examples=SENTENCES)
    check_batching(
        lambda graph, x: [F.dropout(x, 0.2), F.dropout(F.sum(x, dim=0), 0.7)], examples=SENTENCES
    )
    for shape in ((3, 4), (0, 4), (5,), ()):
        check_gradient(lambda graph, x: F.dropout(x, 0.3), shapes=[shape])


def test_kept_elements_are_scaled_by_the_kept_part():
    with db.Graph(seed=0) as graph:
        y = F.dropout(F.input(graph, np.ones((50, 40))), 0.2).value
    assert set(np.unique(y).tolist()) == {0, 1.25}
    assert y.mean() == pytest.approx(1, abs=0.03)


def test_probabilities_travel_with_the_nodes():
    with db.Graph(seed=0) as graph:
        x = F.input(graph, np.ones((50, 40)))
        nodes = [F.dropout(x, p) for p in (0.1, 0.5, 1.0)]
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [1, 3]
        kept = [(node.value != 0).mean() for node in nodes]
    assert kept == pytest.approx([0.9, 0.5, 0], abs=0.04)


def test_off_it_is_the_value_itself():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        assert F.dropout(x, 0.5, training=False) is x
        assert F.dropout(x, 0.0) is x


def test_no_mask_is_stored():
    def activation_bytes(function):
        with db.Graph(seed=0) as graph:
            x = F.input(graph, np.ones((64, 64))).keep()
            graph.backward(F.sum(function(x)))
            return graph.peak_bytes

    assert activation_bytes(F.dropout) <= activation_bytes(lambda x: x * 2.0)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_refused(p):
    with db.Graph() as graph, pytest.raises(ValueError, match="0 <= p <= 1"):
        F.dropout(F.input(graph, [1.0]), p)
