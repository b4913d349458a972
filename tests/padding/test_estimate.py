"""The estimate of a padded mini-batch is what it holds."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.padding import pad_model, padded_peak


@pytest.mark.parametrize("attention", ["additive", "general"])
def test_estimated_padded_peak_equals_the_measured(attention: str) -> None:
    rng = np.random.default_rng(0)
    model = models.Seq2Seq(20, 20, 8, 8, attention=attention, dropout=0.1, rng=0)
    pairs = [(rng.integers(20, size=n), rng.integers(20, size=m)) for n, m in ((3, 9), (7, 1))]
    planned = padded_peak(model, model.loss)(pairs)
    padded = pad_model(model, model.loss)
    with db.Graph() as graph:
        graph.backward(F.mean([padded.loss(graph, *pair) for pair in padded.batch(pairs)]))
        assert planned == graph.peak_bytes
    assert planned > 0
