import pytest

import dynbatch as db
from dynbatch.models import TransformerTranslation
from dynbatch.tasks.translation.padded import padded_loss, padded_pair


def test_the_padded_loss_is_the_loss():
    model = TransformerTranslation(7, 6, 8, layers=2, heads=2, dropout=0.0, rng=0)
    model.eval().astype("float64")
    pairs = [([3, 4], [2]), ([5], [3, 4, 5]), ([3, 3, 3], []), ([], [4])]
    with db.Graph(dtype="float64") as graph:
        own = [model.loss(graph, *pair) for pair in pairs]
        padded = [padded_loss(model, graph, *padded_pair(pair, (3, 3))) for pair in pairs]
        for one, other in zip(own, padded, strict=True):
            assert float(one.value) == pytest.approx(float(other.value), rel=1e-12)
