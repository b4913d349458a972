"""`Cost`: what a shard costs by its examples' lengths, and the numbers found from measured ones."""

import numpy as np
import pytest

from dynbatch import random
from dynbatch.errors import ArgumentError, DataError
from dynbatch.parallel import Cost
from tests.parallel.ranks import on_ranks

ONE = Cost(token=(3.0,), product=(0.5,), longest=(7.0,), sentence=2.0, fixed=11.0)
TWO = Cost((3.0, 4.0), (0.5, 0.25, 0.125), (7.0, 9.0), 2.0, 11.0)


def random_lengths(seed, count, sides):
    return np.random.default_rng(seed).integers(1, 60, (count, sides))


def test_a_shard_costs_by_its_examples_and_the_longest():
    assert ONE.of([2, 4]) == 11 + 2 * 2 + 3 * 6 + 0.5 * (4 + 16) + 7 * 4
    pairs = 0.5 * (4 + 9) + 0.25 * (2 * 5 + 3 * 1) + 0.125 * (25 + 1)
    assert TWO.of([[2, 5], [3, 1]]) == 11 + 2 * 2 + (3 * 5 + 4 * 6) + pairs + (7 * 3 + 9 * 5)
    assert Cost().of([2, 4]) == 6
    assert ONE.of([]) == 0


@pytest.mark.parametrize("cost", [ONE, TWO])
def test_its_numbers_are_found_from_shards(cost):
    shards = [random_lengths(seed, 2 + 3 * seed, len(cost.token)) for seed in range(24)]
    found = Cost.fitted(shards, [cost.of(shard) for shard in shards])
    np.testing.assert_allclose(found._rates(), cost._rates(), rtol=1e-8)


def test_no_number_is_negative():
    shards = [random_lengths(seed, 2 + 3 * seed, 1) for seed in range(24)]
    seconds = [shard.sum() - 0.01 * (shard**2).sum() for shard in shards]
    found = Cost.fitted(shards, seconds)
    assert found.product == (0.0,) and found.token[0] > 0 and (found._rates() >= 0).all()


@pytest.mark.parametrize("cost", [ONE, TWO])
def test_a_model_is_measured_on_shards_that_are_drawn(cost):
    lengths = random_lengths(1, 400, len(cost.token))
    now, steps = [0.0], []

    def step(shard):
        steps.append(shard)
        random.next_seed()
        seconds = cost.of(lengths[shard])
        now[0] += seconds if len(steps) % 2 else 1.5 * seconds  # a busy machine; the least counts

    drawn = random.get_state()
    found = Cost.measured(step, range(400), lengths, size=64, clock=lambda: now[0])
    assert random.get_state() == drawn
    assert len(steps) == 1 + 3 * 24 and {len(shard) for shard in steps} >= {16, 96}
    for seed in range(5):
        shard = random_lengths(seed, 50, len(cost.token))
        assert found.of(shard) == pytest.approx(cost.of(shard), rel=0.5)


def test_shards_are_balanced_by_what_they_cost():
    lengths = np.rint(np.random.default_rng(0).lognormal(2, 1, (200, 2)))
    shards = TWO.shards(lengths, 4)
    costs = [TWO.of(lengths[shard]) for shard in shards]
    assert sorted(i for shard in shards for i in shard) == list(range(200))
    assert max(costs) / np.mean(costs) < 1.02
    assert shards == TWO.shards(lengths.tolist(), 4)


def test_a_cost_is_measured_once_by_the_first_rank_and_kept(tmp_path):
    measured = []

    def kept(communicator):
        return Cost.kept(
            tmp_path / "runs" / "cost.json",
            lambda: measured.append(communicator) or TWO,
            communicator,
        )

    assert on_ranks(3, kept) == [TWO] * 3
    assert on_ranks(2, kept) == [TWO] * 2 and [each.rank for each in measured] == [0]


@pytest.mark.parametrize("text", ["{", "[1]", '{"tokens": [1]}', '{"token": [-1]}'])
def test_a_file_with_something_else_is_refused(text, tmp_path):
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(DataError, match=r"cost.json: not a cost of shards(.*\n)*.*measured anew"):
        Cost.kept(tmp_path / "cost.json", Cost)


def test_mini_batches_are_cut_by_the_lengths_of_their_examples():
    pairs = [("a" * source, "b" * target) for source, target in random_lengths(2, 30, 2)]
    lengths = [[len(source), len(target)] for source, target in pairs]
    cut = TWO.cut(lambda pair: (len(pair[0]), len(pair[1])))
    assert cut(pairs, 4) == TWO.shards(lengths, 4)


def test_lengths_and_numbers_must_fit():
    with pytest.raises(ArgumentError, match="product has 1 numbers for 2 lengths"):
        Cost(token=(1.0, 1.0), product=(1.0,))
    with pytest.raises(ArgumentError, match="sentence is nan"):
        Cost(sentence=float("nan"))
    with pytest.raises(ArgumentError, match=r"\(N, 2\): as many lengths"):
        TWO.shards([1, 2, 3], 2)
