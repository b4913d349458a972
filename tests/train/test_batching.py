"""Mini-batches: every example once, an order that is a pure function, budgets that hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.errors import ArgumentError, EmptyBatchError, ShapeError
from dynbatch.train.batching import (
    SentenceBatches,
    TokenBatches,
    epoch_order,
    padded_tokens,
    padding_ratio,
)

lengths_of_examples = st.lists(st.integers(0, 40), min_size=1, max_size=60)
seeds = st.integers(-(2**70), 2**70)


@given(num_examples=st.integers(1, 200), batch_size=st.integers(1, 64), seed=seeds)
def test_sentence_batches_hold_every_example_once_in_batches_of_the_size(
    num_examples, batch_size, seed
):
    batches = SentenceBatches(range(num_examples), batch_size, seed=seed)
    epoch = batches.epoch(3)

    assert sorted(itertools.chain.from_iterable(epoch)) == list(range(num_examples))
    assert len(epoch) == len(batches) == batches.num_batches(3)
    assert all(len(batch) == batch_size for batch in epoch[:-1])
    assert 1 <= len(epoch[-1]) <= batch_size


@given(lengths=lengths_of_examples, max_tokens=st.integers(1, 60), seed=seeds)
def test_token_batches_hold_every_example_once_and_keep_the_budget(lengths, max_tokens, seed):
    examples = list(enumerate(lengths))
    batches = TokenBatches(examples, max_tokens, length=lambda example: example[1], seed=seed)
    epoch = batches.epoch(0)

    assert sorted(itertools.chain.from_iterable(epoch)) == examples
    assert len(epoch) == batches.num_batches(0)
    for batch in epoch:
        over_long = len([length for _, length in batch if length > max_tokens])
        assert sum(length for _, length in batch) <= max_tokens or (len(batch) == over_long == 1)


@given(lengths=lengths_of_examples, max_tokens=st.integers(1, 60))
def test_token_batches_are_closed_only_when_the_next_example_does_not_fit(lengths, max_tokens):
    batches = TokenBatches(lengths, max_tokens, length=int)
    epoch = batches.epoch(0)
    for batch, following in itertools.pairwise(epoch):
        assert sum(batch) + following[0] > max_tokens


def test_an_example_longer_than_the_budget_is_a_batch_of_its_own():
    batches = TokenBatches(["abcdefgh", "a", "b", "c"], max_tokens=3)
    for epoch in range(6):
        assert ["abcdefgh"] in batches.epoch(epoch)


def test_the_order_is_pinned_for_good():
    # Resuming a run on another machine or NumPy version relies on these very numbers.
    assert epoch_order(8, seed=0, epoch=0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(8, seed=0, epoch=1).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert epoch_order(8, seed=1, epoch=0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


def test_the_order_depends_on_seed_and_epoch_alone():
    first = SentenceBatches(range(100), 8, seed=5)
    second = SentenceBatches(range(100), 8, seed=5)
    first.epoch(0)

    assert first.epoch(7) == second.epoch(7)
    assert first.epoch(7) != first.epoch(8)
    assert first.epoch(7) != SentenceBatches(range(100), 8, seed=6).epoch(7)
    assert first.epoch(7) != SentenceBatches(range(100), 8, seed=7).epoch(5)


def test_every_example_comes_first_about_equally_often():
    counts = np.bincount([epoch_order(4, 0, epoch)[0] for epoch in range(400)], minlength=4)
    assert counts.min() > 60 and counts.max() < 140


def test_batches_are_not_sorted_by_length():
    lengths = list(range(1, 257))
    means = [np.mean(batch) for batch in SentenceBatches(lengths, 32).epoch(0)]
    assert max(means) - min(means) < 64  # sorted batches would differ by 224


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SentenceBatches([], 4), "SentenceBatches: there are no examples"),
        (lambda: TokenBatches([], 4), "TokenBatches: there are no examples"),
        (lambda: SentenceBatches(["a"], 0), "batch_size is 0, so every batch would be empty"),
        (lambda: TokenBatches(["a"], -2), "max_tokens is -2, so every batch would be empty"),
        (lambda: padding_ratio([]), "no lengths"),
    ],
)
def test_an_empty_batch_is_refused(make, message):
    with pytest.raises(EmptyBatchError, match=message):
        make()


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 2], ShapeError, "2 lengths for 3 examples"),
        ([1, -2, 3], ShapeError, "example 1 has length -2"),
        ([1.0, 2.0, 3.0], ArgumentError, "length has float64 of 1 dimensions"),
        ([[1], [2, 3], [4]], ArgumentError, "length has object of 1 dimensions"),
        (None, ArgumentError, "length is None"),
    ],
)
def test_lengths_known_beforehand_are_checked(lengths, error, message):
    with pytest.raises(error, match=message):
        TokenBatches(["a", "b", "c"], 4, length=lengths)


def test_a_negative_length_is_refused_with_the_example():
    with pytest.raises(ShapeError, match="example 1 has length -3"):
        TokenBatches([1, -3, 2], 4, length=int)


def test_padding_is_counted_against_the_longest_sentence():
    assert padded_tokens([3, 1, 2]) == 9
    assert padding_ratio([3, 1, 2]) == 1.5
    assert padding_ratio(np.array([5, 5])) == 1.0
    assert padding_ratio([0, 0]) == 1.0
