import numpy as np
from hypothesis import given, settings

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing import strategies
from dynbatch.testing.random_graph import OPERATIONS


def examples(strategy, count=100):
    """Examples of a strategy, the same in every run."""
    found = []

    @settings(max_examples=count, database=None, derandomize=True)
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


@given(strategies.lengths(most_sentences=4, longest=9))
def test_lengths_are_within_their_bounds(lengths):
    assert 1 <= len(lengths) <= 4
    assert all(0 <= length <= 9 for length in lengths)


def test_lengths_0_and_1_and_uneven_ones_occur():
    found = examples(strategies.lengths())
    for wanted in (0, 1):
        assert any(wanted in lengths and max(lengths) > 3 for lengths in found)


@given(strategies.ragged(3))
def test_ragged_batches_share_their_width(batch):
    assert batch and all(x.shape[1:] == (3,) and x.dtype == np.float64 for x in batch)


@given(strategies.random_graphs())
def test_a_random_graph_is_the_same_every_time(random_graph):
    plans, values = [], []
    for _ in range(2):
        with db.Graph(dtype="float64", seed=0) as graph:
            built = random_graph.build(graph)
            values.append(built.loss.value)
            plans.append([repr(n) for n in graph._nodes])
    assert plans[0] == plans[1]
    assert np.isfinite(values[0]) and values[0] == values[1]


def test_every_operation_occurs():
    operations = {
        instruction.operation
        for random_graph in examples(strategies.random_graphs(), count=300)
        for sentence in random_graph.sentences
        for instruction in sentence.program
    }
    assert operations == set(OPERATIONS)


def test_functions_of_the_user_are_called():
    calls = []

    def own(x):
        calls.append(x.shape)
        return F.tanh(x)

    for random_graph in examples(strategies.random_graphs(functions=[own]), 20):
        with db.Graph(dtype="float64") as graph:
            random_graph.build(graph)
    assert calls
