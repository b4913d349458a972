"""`spread`: outputs in the order of examples on all ranks, whoever computed them."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, parallel
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ParallelError
from tests.parallel.ranks import on_ranks

PROMPTS = [[1, 2], [3], [4, 5, 6, 7], [8, 1], [2]]


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("costs", [None, [30, 1, 1, 1, 0]])
def test_outputs_come_in_order(size, costs):
    seen = []

    def do(communicator):
        def doubled(part):
            seen.append(part)
            return [2 * each for each in part]

        return parallel.spread(communicator, range(5), doubled, costs)

    assert on_ranks(size, do) == [[0, 2, 4, 6, 8]] * size
    assert sorted([each for part in seen for each in part]) == [0, 1, 2, 3, 4]
    if size == 2 and costs:
        assert sorted(seen) == [[0], [1, 2, 3, 4]]


def test_prediction_scores_and_texts_are_those_of_one_process():
    model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16)
    embed = models.Embedding(10, 4)

    def vector(graph, ids):
        return F.mean(embed(graph, ids), dim=0)

    def score(graph, ids):
        return db.log_prob(graph, model, ids, [1, 2])

    def do(communicator):
        pairs = list(enumerate(PROMPTS, start=5))
        found = parallel.spread(communicator, PROMPTS, lambda part: db.predict(embed, vector, part))
        scores = parallel.spread(communicator, PROMPTS, lambda part: db.predict(model, score, part))
        drawn = parallel.spread(
            communicator, pairs,
            lambda part: db.generate(
                model, [prompt for _, prompt in part], seeds=[seed for seed, _ in part],
                do_sample=True, max_new_tokens=6,
            ),
        )  # fmt: skip
        return found, scores, [best.tokens for (best,) in drawn]

    ((vectors, scores, texts),) = on_ranks(1, do)
    sampled = db.generate(model, PROMPTS, seed=5, do_sample=True, max_new_tokens=6)
    assert texts == [best.tokens for (best,) in sampled]
    for found in on_ranks(2, do):
        np.testing.assert_allclose(found[0], vectors, rtol=1e-6)
        np.testing.assert_allclose(found[1], scores, rtol=1e-6)
        assert found[2] == texts


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="2 costs for 3 examples"):
        on_ranks(2, lambda c: parallel.spread(c, range(3), list, [1, 2]))
    with pytest.raises(ArgumentError, match="0 outputs for 2 examples"):
        on_ranks(1, lambda c: parallel.spread(c, range(2), lambda part: []))
    model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16)
    with pytest.raises(ArgumentError, match="1 seeds for 5 prompts"):
        db.generate(model, PROMPTS, seeds=[1])
    with pytest.raises(ParallelError, match="number of examples: 2 on rank 0; 3 on rank 1"):
        on_ranks(2, lambda c: parallel.spread(c, range(2 + c.rank), list))
    with pytest.raises(ParallelError, match="digest of shares: "):
        on_ranks(2, lambda c: parallel.spread(c, range(4), list, [4, 1 + c.rank, 2, 2 - c.rank]))
