"""The Transformer for pairs of sentences: its loss, and its search."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.models import TransformerTranslation

SOURCES = [[3, 4, 5, 6], [3], [], [5, 5]]


def made(seed=0):
    model = TransformerTranslation(7, 6, 8, layers=2, heads=2, dropout=0.0, rng=seed)
    rng = np.random.default_rng(seed)
    for parameter in [p for p in model.parameters() if len(p.shape) == 2]:  # so that they differ
        parameter.assign(rng.normal(0, 1, parameter.shape))
    return model.eval()


def found_by(model, **options):
    return db.generate(model, SOURCES, max_new_tokens=7, eos_token_id=model.end, **options)


@pytest.mark.parametrize("seed", range(4))
def test_the_score_of_what_is_found_is_its_loss(seed):
    model = made(seed)
    for source, (found,) in zip(SOURCES, found_by(model), strict=True):
        with db.Graph(grad=False) as graph:
            read = model.opened(np.array(found.tokens[:-1], np.int64))
            states = model.decode(graph, read, model.encode(graph, source))
            loss = F.cross_entropy(model.predict(states), found.tokens, reduction="sum")
            assert -found.score == pytest.approx(float(loss.value), rel=1e-4, abs=1e-4)


def test_a_beam_finds_at_least_as_good():
    model = made()
    greedy, wide = found_by(model), found_by(model, num_beams=4, length_penalty=0.0)
    assert len({best.tokens for (best,) in greedy}) > 1
    for (one,), (best,) in zip(greedy, wide, strict=True):
        assert best.score >= one.score - 1e-5


def test_a_pair_is_few_nodes_however_many_layers():
    pairs = [([3, 4], [2]), ([5], [3, 4, 5]), ([3, 3, 3], [])]
    for layers in (1, 3):
        model = TransformerTranslation(7, 6, 8, layers=layers, heads=2)
        with db.Graph() as graph:
            for pair in pairs:
                model.loss(graph, *pair)
            assert len(graph.nodes) <= 5 * len(pairs)
