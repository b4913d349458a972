"""Rows that look like padding are counted where all sentences are of one length."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

embed = models.Embedding(9, 3, rng=0)


def padded(ids):
    with db.Graph() as graph:
        for sentence in ids:
            embed(graph, sentence)
        graph.forward()
    (row,) = graph._record().rows
    return row.padded_rows


def padded_vectors(rows):
    with db.Graph() as graph:
        for sentence in rows:
            F.input(graph, np.array(sentence, np.float32)[:, None] * np.ones(3))
        graph.forward()
    (row,) = graph._record().rows
    return row.padded_rows


PADDED = [[3, 4, 5, 0, 0], [1, 2, 3, 4, 5], [7, 0, 0, 0, 0], [2, 3, 0, 0, 0]]


def test_ids_and_vectors_that_are_repeated_at_the_end_are_counted_but_for_the_first():
    assert padded(PADDED) == padded_vectors(PADDED) == 1 + 3 + 2


@pytest.mark.parametrize(
    "ids",
    [
        PADDED[:3],  # too few to say
        [[*sentence, 1] for sentence in PADDED],  # an end mark behind
        [*PADDED[:3], [2, 3, 4]],  # of other lengths
        [[1, 2, 0], [3, 4, 0], [5, 6, 0], [7, 8, 0]],  # an end mark
        [[1, 0, 0], [2, 3, 4], [5, 6, 7], [8, 1, 2]],  # one of four
        [[1]] * 4,
    ],
)
def test_other_sentences_have_no_padding(ids):
    assert padded(ids) == padded_vectors(ids) == 0


def test_a_margin_that_all_pictures_have_is_not_padding():
    assert padded_vectors([[1, 2, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [1, 1, 0, 0]]) == 0


def test_a_block_counts_as_its_operators_do():
    encode = db.block(lambda graph, ids: F.tanh(embed(graph, ids)))
    with db.Graph() as graph:
        for ids in PADDED:
            encode(graph, ids)
        graph.forward()
    assert [row.padded_rows for row in graph._record().rows] == [6, 0]
