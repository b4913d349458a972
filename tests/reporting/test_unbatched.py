"""The warning of a graph that ran almost one by one."""

import warnings

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import BatchingWarning
from dynbatch.reporting import unbatched


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(unbatched, "_warned", False)


def chain(graph, length=600):
    x = F.input(graph, [1.0])
    for _ in range(length):
        x = F.tanh(x)
    return x


def test_a_chain_alone_is_told_to_bring_the_other_sentences():
    with pytest.warns(BatchingWarning, match="put all sentences of a mini-batch") as caught:
        with db.Graph() as graph:
            chain(graph)
            graph.forward()
    assert "601 nodes ran in 601 batches" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_graph_closed_by_hand_warns_at_the_users_line():
    graph = db.Graph()
    chain(graph)
    graph.forward()
    with pytest.warns(BatchingWarning) as caught:
        graph.close()
    assert caught[0].filename == __file__


def test_it_comes_once_a_process():
    with pytest.warns(BatchingWarning), db.Graph() as graph:
        chain(graph)
        graph.forward()
    graph.close()
    with db.Graph() as graph:
        chain(graph)
        graph.forward()


def test_signatures_that_differ_are_named():
    with pytest.warns(BatchingWarning, match="LinearMap ran with 600 parameters .*; one layer"):
        with db.Graph() as graph:
            x = F.input(graph, [1.0])
            for _ in range(600):
                F.linear(x, db.Parameter(np.ones((1, 1), "float32")))
            graph.forward()
    told = "Elu ran in 600 groups that could be one: static attribute alpha differs: 0.5 / 1.5"
    unbatched._warned = False
    with pytest.warns(BatchingWarning, match=told):
        with db.Graph() as graph:
            x = F.input(graph, [1.0])
            for k in range(600):
                x = F.elu(x, 0.5 + k)
            graph.forward()


def scores(graph, length):
    x = F.input(graph, np.ones((length, 2)))
    return x @ F.transpose(x)


def test_a_type_that_takes_no_lengths_is_named():
    with pytest.warns(BatchingWarning) as caught:
        with db.Graph() as graph:
            for length in range(1, 31):
                F.layer_norm(scores(graph, length))
            graph.forward()
    text = str(caught[0].message)
    assert "30 nodes of type LayerNormalization ran in 30 batches, almost one by one" in text
    assert "widths differ: 1 → 1 / 2 → 2" in text
    assert caught[0].filename == __file__


def test_scores_given_as_arrays_are_told_that_their_widths_count_as_features():
    with pytest.warns(BatchingWarning, match=r"Softmax .*: widths of features differ: 1 → 1 / 2"):
        with db.Graph() as graph:
            for length in range(1, 31):
                F.softmax(F.input(graph, np.ones((length, length))))
            graph.forward()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_few_widths_or_several_nodes_of_each_are_let_be(nodes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with db.Graph() as graph:
            for length in range(1, 31 if nodes > 1 else 16):
                for _ in range(nodes):
                    F.layer_norm(scores(graph, length))
            graph.forward()


def test_mini_batches_of_one_structure_are_counted_once():
    def plan():
        with db.Graph() as graph:
            chain(graph, 20)
            graph.forward()
        return graph.plans[0]

    counts = vars(plan())["nodes_by_type"]
    assert vars(plan())["nodes_by_type"] is counts
    assert sum(nodes.total() for nodes in counts.values()) == 21


def test_what_batches_by_length_is_let_be():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with db.Graph() as graph:
            for length in range(1, 31):
                F.softmax(scores(graph, length))
            graph.forward()
    assert graph.statistics.batches == 4


def test_values_read_one_by_one_are_named():
    with pytest.warns(
        BatchingWarning, match="values were read while the graph was built, in 300 runs"
    ):
        with db.Graph() as graph:
            for _ in range(300):
                _ = F.tanh(F.input(graph, [1.0])).value


def test_a_policy_that_finds_nothing_ready_together_is_named():
    with pytest.warns(BatchingWarning, match="the policy by_depth made 601 batches, where 302"):
        with db.Graph(policy="by_depth") as graph:
            x = F.input(graph, [1.0])
            for _ in range(300):
                x = F.abs(x)
                F.exp(x)  # at a depth of its own, though all could wait for the last
            graph.forward()


@pytest.mark.parametrize(("length", "policy"), [(400, "by_agenda"), (600, "one_by_one")])
def test_small_graphs_and_the_one_by_one_policy_are_let_be(length, policy):
    with db.Graph(policy=policy) as graph:
        chain(graph, length)
        graph.forward()


def test_two_chains_that_run_together_are_let_be():
    with db.Graph() as graph:
        chain(graph), chain(graph)
        graph.forward()


def test_an_error_in_the_block_is_not_hidden_by_the_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError), db.Graph() as graph:
            chain(graph)
            graph.forward()
            raise KeyError


@db.cell
def one_more(x, h):
    return x + h


@pytest.mark.parametrize(("sentences", "warns"), [(1, True), (3, False)])
def test_calls_count_by_their_own_batches(sentences, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with db.Graph() as graph:
            for _ in range(sentences):
                x = h = F.input(graph, [1.0])
                for _ in range(600):
                    h = one_more(x, h)
            graph.forward()
    assert [w.category for w in caught] == [BatchingWarning] * warns
    if warns:
        assert "601 nodes ran in 601 batches" in str(caught[0].message)
        assert "put all sentences of a mini-batch" in str(caught[0].message)
