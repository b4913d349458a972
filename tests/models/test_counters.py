"""Exactly what a training step of the reference models costs: a merge that is lost fails here."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.rnn import gru_cell

LENGTHS = (5, 1, 3, 2)


# Threads share the sentences of a scan, and each launches its own kernels.
pytestmark = pytest.mark.usefixtures("one_thread")


def cost(losses):
    """(nodes, batches, fewest possible, launches, bytes copied) of forward and backward."""
    with db.Graph() as graph:
        graph.backward(F.mean(losses(graph)))
    found = graph.statistics
    return found.nodes, found.batches, graph.lower_bound, found.launches, found.copied_bytes


def test_a_tagger_of_bidirectional_lstms():
    embed = models.Embedding(9, 6, rng=0)
    lstm = models.LSTM(6, 4, bidirectional=True, rng=0)
    project = models.Linear(8, 3, rng=0)

    def losses(graph):
        sentences = [np.arange(length) for length in LENGTHS]
        return [F.cross_entropy(project(lstm(embed(graph, ids))), ids % 3) for ids in sentences]

    assert cost(losses) == (21, 6, 6, 276, 968)


def test_sequence_to_sequence_with_attention():
    model = models.Seq2Seq(9, 8, 6, 4, rng=0)

    def losses(graph):
        return [model.loss(graph, np.arange(n), np.arange(n + 1)) for n in LENGTHS]

    assert cost(losses) == (61, 14, 14, 566, 2440)


def test_a_gru_called_step_by_step():
    gru, embed = models.GRU(6, 4, rng=0), models.Embedding(9, 6, rng=0)
    (weights,) = gru._directions.weights

    def losses(graph):
        found = []
        for length in LENGTHS:
            xs, h, states = embed(graph, np.arange(length)), 4, []
            for t in range(length):
                _, h = gru_cell(xs[t], h, weights)
                states.append(h)
            found.append(F.sum(F.tanh(F.stack(states))))
        return found

    # With the bias as a value, gathered as all else is: ahead, again in backward, and back.
    assert cost(losses) == (28, 10, 10, 156, 0)
