"""Rows of logits: their log-probabilities are those that training computes."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.generation.rows import rows_of


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_probabilities_have_the_bits_of_log_softmax(dtype):
    logits = (4 * np.random.default_rng(0).standard_normal((9, 70))).astype(dtype)
    logits[3, 5:9] = -np.inf
    with db.Graph(dtype=dtype, grad=False) as graph:
        wanted = F.log_softmax(F.input(graph, logits)).value
    for k, row in enumerate(rows_of(logits)):
        assert row.log_probs.tobytes() == wanted[k].tobytes()
        assert row.best == logits[k].argmax()
        (alone,) = rows_of(logits[k : k + 1])
        assert alone.log_probs.tobytes() == row.log_probs.tobytes()
