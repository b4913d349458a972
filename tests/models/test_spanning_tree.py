from itertools import product

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.models import maximum_spanning_tree


def is_tree(heads):
    """Whether one token hangs from the root, and every other at last from it."""
    for token in range(len(heads)):
        above, steps = token + 1, 0
        while above and steps <= len(heads):
            above, steps = heads[above - 1], steps + 1
        if above:
            return False
    return list(heads).count(0) == 1


def score(scores, heads):
    return sum([row[head] for row, head in zip(scores, heads, strict=True)])


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
def test_the_best_of_all_trees_enumerated_is_found(tokens):
    trees = [heads for heads in product(range(tokens + 1), repeat=tokens) if is_tree(heads)]
    assert len(trees) == tokens ** (tokens - 1)  # Cayley's formula for rooted trees
    rng = np.random.default_rng(tokens)
    for _ in range(40):
        scores = rng.standard_normal((tokens, tokens + 1))
        best = max(trees, key=lambda heads: score(scores, heads))
        assert tuple(maximum_spanning_tree(scores)) == best


def test_long_sentences_give_trees_at_least_as_good_as_their_greedy_part():
    rng = np.random.default_rng(0)
    for tokens in (0, 60, 200):
        scores = rng.standard_normal((tokens, tokens + 1)).astype(np.float32)
        heads = maximum_spanning_tree(scores)
        assert heads.dtype == np.int64 and (not tokens or is_tree(heads.tolist()))
        chain = np.arange(tokens)
        assert score(scores, heads) >= score(scores, chain)


def test_cycles_within_cycles_are_broken():
    """1 and 2 prefer each other, so do 3 and 4, and then the two pairs."""
    scores = np.array(
        [[0, 0, 9, 0, 5.0], [0, 9, 0, 4, 0], [1, 0, 6, 0, 9], [0, 0, 0, 9, 0]], np.float64
    )
    trees = [heads for heads in product(range(5), repeat=4) if is_tree(heads)]
    best = max(trees, key=lambda heads: score(scores, heads))
    assert tuple(maximum_spanning_tree(scores)) == best


@pytest.mark.parametrize("scores", [np.zeros((2, 2)), np.full((1, 2), np.nan)])
def test_what_is_no_table_of_arcs_is_refused(scores):
    with pytest.raises(ShapeError, match="maximum_spanning_tree"):
        maximum_spanning_tree(scores)
