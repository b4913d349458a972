"""Attention modules against the formulas of their papers, and with rows of several sentences."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.attention import make_attention
from dynbatch.testing import check_batching, check_gradient

Q, K = 3, 4
KINDS = {
    "additive": lambda: models.AdditiveAttention(Q, K, 5, rng=0),
    "general": lambda: models.GeneralAttention(Q, K, rng=0),
    "dot": lambda: models.DotAttention(),
    "scaled dot": lambda: models.DotAttention(scale=None),
}


def sizes(kind):
    return (K, K) if "dot" in kind else (Q, K)


def scores(kind, model, query, memory):
    """(T_q, T_k), as the papers write it."""
    if kind == "additive":
        sums = query @ model.query.weight.value.T, memory @ model.key.weight.value.T
        return np.tanh(sums[0][:, None] + sums[1][None]) @ model.vector.value
    if kind == "general":
        return query @ model.key.weight.value @ memory.T
    return query @ memory.T / (1.0 if kind == "dot" else np.sqrt(query.shape[1]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_context_is_the_mean_weighted_by_the_softmax_of_the_scores(kind):
    model, rng = KINDS[kind](), np.random.default_rng(1)
    query, memory = [rng.standard_normal((n, d)) for n, d in zip((2, 5), sizes(kind), strict=True)]
    with db.Graph() as graph:
        context = model(F.input(graph, query), F.input(graph, memory)).value
        one = model(F.input(graph, query[0]), F.input(graph, memory)).value
    exps = np.exp(scores(kind, model, query, memory))
    expected = exps / exps.sum(axis=1, keepdims=True) @ memory
    assert np.allclose(context, expected, atol=1e-5)
    assert one.shape == (K,) and np.allclose(one, expected[0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_batching(kind):
    model = KINDS[kind]()
    q, k = sizes(kind)

    def attend(graph, query, memory):
        return model(query, memory)

    check_gradient(attend, shapes=[(2, q), (3, k)], parameters=model)
    shapes = [[(q,), (3, k)], [(q,), (0, k)], [(2, q), (1, k)]]
    check_batching(attend, shapes=shapes, parameters=model)


@pytest.mark.parametrize("kind", KINDS)
def test_values_may_be_others_than_the_keys(kind):
    model, rng = KINDS[kind](), np.random.default_rng(2)
    q, k = sizes(kind)
    with db.Graph() as graph:
        query, memory = [F.input(graph, rng.standard_normal(s)) for s in ((q,), (4, k))]
        ones = F.constant(graph, 1.0, (4, 7))
        assert np.allclose(model(query, memory, ones).value, np.ones(7))


def test_an_unknown_attention_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'additive' or 'general'"):
        make_attention("dot", Q, K, None)
