"""`balanced`: every example once, no shard dearer than need be, the same shards for equal costs."""

from itertools import chain, product

import numpy as np
import pytest

from dynbatch.errors import ArgumentError
from dynbatch.parallel import balanced


def dearest(costs, shards):
    return max(sum(costs[i] for i in shard) for shard in shards)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_every_example_is_in_one_shard(count, size):
    shards = balanced(np.random.default_rng(count).integers(0, 50, count), size)
    assert len(shards) == size
    assert sorted(chain(*shards)) == list(range(count))
    assert all(shard == sorted(shard) for shard in shards)
    assert sum(map(bool, shards)) == min(count, size)


def test_the_dearest_shard_is_near_the_cheapest_there_can_be():
    for seed in range(3):
        costs = np.random.default_rng(seed).integers(1, 30, 8).tolist()
        best = min(
            max(sum(c for c, s in zip(costs, places, strict=True) if s == k) for k in range(3))
            for places in product(range(3), repeat=8)
        )
        assert dearest(costs, balanced(costs, 3)) <= best * 1.1


def test_an_exchange_mends_what_the_dearest_first_leaves():
    assert balanced([5, 4, 3, 3, 3], 2) == [[0, 1], [2, 3, 4]]


def test_a_long_sentence_is_alone_where_it_costs_as_much_as_the_others():
    assert balanced([1] * 15 + [30] + [1] * 15, 2) == [[15], [*range(15), *range(16, 31)]]


def test_equal_costs_are_cut_in_their_order_and_whatever_their_unit():
    assert balanced([2.5] * 5, 2) == [[0, 2, 4], [1, 3]]
    costs = np.random.default_rng(3).lognormal(size=200)
    assert balanced(costs, 7) == balanced(costs * 2.0**-30, 7)
    assert balanced([0.0] * 3, 2) == [[0, 2], [1]]


def cost(shard, own, longest):
    return own[shard].sum() + longest[shard].max(axis=0).sum() if shard else 0.0


@pytest.mark.parametrize("lengths", [1, 2])
def test_a_shard_costs_its_longest_example_too(lengths):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        own, longest = rng.integers(1, 30, 7), rng.integers(1, 60, (7, lengths))
        cuts = [
            [[i for i in range(7) if places[i] == k] for k in range(3)]
            for places in product(range(3), repeat=7)
        ]
        best = min(max(cost(shard, own, longest) for shard in cut) for cut in cuts)
        found = max(cost(shard, own, longest) for shard in balanced(own, 3, longest))
        assert found <= best * 1.15


def test_examples_of_like_length_share_a_shard_where_the_longest_one_counts():
    lengths = np.rint(np.random.default_rng(0).lognormal(3, 0.6, 512))
    longest = lengths[:, None] * 5
    shards = balanced(lengths, 8, longest)
    costs = [cost(shard, lengths, longest) for shard in shards]
    assert sorted(chain(*shards)) == list(range(512))
    assert max(costs) / np.mean(costs) < 1.02
    alone = [cost(shard, lengths, longest) for shard in balanced(lengths, 8)]
    assert max(costs) < max(alone) * 0.9


def test_shards_are_mixed_where_the_longest_one_counts_little():
    lengths = np.rint(np.random.default_rng(0).lognormal(3, 0.6, 512))
    shards = balanced(lengths, 8, lengths[:, None] / 5)
    assert min(np.median(lengths[shard]) for shard in shards) > np.median(lengths) * 0.8


@pytest.mark.parametrize("costs", [[1, -1], [np.nan], [np.inf, 1], [[1, 2]], 3])
def test_costs_that_are_none_are_refused(costs):
    with pytest.raises(ArgumentError, match="one for each example"):
        balanced(costs, 2)
    with pytest.raises(ArgumentError, match=r"longest is \(N, K\)"):
        balanced([1, 2], 2, np.ones(2))


def test_no_shards_are_refused():
    with pytest.raises(ArgumentError, match="size is 0"):
        balanced([1, 2], 0)
