"""Steps of blocks know lengths and places of their nodes without making them."""

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.steps.members import Members


def single_nodes(monkeypatch, sentences):
    """The number of nodes of its blocks that a training step makes."""
    made = []
    one = Members._made
    monkeypatch.setattr(
        Members, "_made", lambda self, place: made.append(place) or one(self, place)
    )
    model = models.Seq2Seq(9, 8, 6, 4, dropout=0.2, rng=0)
    with db.Graph() as graph:
        losses = [model.loss(graph, np.arange(n), np.arange(n // 2)) for n in sentences]
        graph.backward(F.mean(losses))
    monkeypatch.undo()
    return len(made)


def test_a_step_makes_as_many_single_nodes_for_few_sentences_as_for_many(monkeypatch):
    few = single_nodes(monkeypatch, (3, 8))
    assert 0 < few <= 30
    assert single_nodes(monkeypatch, (1, 5, 8, 2, 7, 7, 3)) == few
