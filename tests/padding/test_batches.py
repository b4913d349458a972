from itertools import pairwise

from dynbatch.padding.batches import (
    batches_by_tokens,
    bucketed_batches,
    cells,
    random_batches,
    random_batches_by_tokens,
    sample,
    tokens,
    tokens_of,
)

LENGTHS = [(n % 7 + 1, n * 5 % 11 + 1) for n in range(60)]


def test_an_epoch_holds_every_example_once_and_no_smaller_batch() -> None:
    for batches in (random_batches(LENGTHS, 6, seed=1), bucketed_batches(LENGTHS, 6)):
        assert sorted([i for batch in batches for i in batch]) == list(range(60))
        assert {len(batch) for batch in batches} == {6}
    assert len(random_batches(LENGTHS, 7, seed=1)) == 60 // 7


def test_bucketed_batches_have_less_padding_on_both_sides() -> None:
    def padding(batches: list[list[int]], side: int) -> int:
        one = [(pair[side],) for pair in LENGTHS]
        return sum([cells(batch, one) - tokens(batch, one) for batch in batches])

    random, bucketed = random_batches(LENGTHS, 6, seed=1), bucketed_batches(LENGTHS, 6)
    assert padding(bucketed, 0) < padding(random, 0) / 2
    assert padding(bucketed, 1) < padding(random, 1) / 2


def test_one_sequence_is_sorted_by_length() -> None:
    lengths = [(n * 7 % 10,) for n in range(10)]
    batches = bucketed_batches(lengths, 2)
    assert [lengths[i][0] for batch in batches for i in batch] == list(range(10))


def test_the_longest_sentences_are_in_bucketed_batches_and_the_shortest_left_out() -> None:
    lengths = [(n,) for n in (9, 1, 8, 2, 7, 3, 6)]
    assert sorted([lengths[i][0] for batch in bucketed_batches(lengths, 3) for i in batch]) == [
        2, 3, 6, 7, 8, 9
    ]  # fmt: skip


def test_random_batches_by_tokens_hold_no_more_and_every_example_once() -> None:
    batches = random_batches_by_tokens(LENGTHS, 60, seed=1)
    assert sorted([i for batch in batches for i in batch]) == list(range(len(LENGTHS)))
    assert max(tokens(batch, LENGTHS) for batch in batches if len(batch) > 1) <= 60
    assert [i for batch in batches for i in batch] != sorted(range(len(LENGTHS)))


def test_batches_by_tokens_hold_no_more_with_padding_and_every_example_once() -> None:
    batches = batches_by_tokens(LENGTHS, 60)
    assert sorted([i for batch in batches for i in batch]) == list(range(60))
    assert max([cells(batch, LENGTHS) for batch in batches]) <= 60
    for batch, following in pairwise(batches):  # the next one would not have fitted
        assert cells([*batch, following[0]], LENGTHS) > 60


def test_a_sentence_above_the_tokens_of_a_batch_is_alone() -> None:
    assert batches_by_tokens([(9,), (2,), (30,), (2,), (31,)], 10) == [[1, 3], [0], [2], [4]]
    assert batches_by_tokens([(0,), (0,), (3,)], 3) == [[0, 1], [2]]


def test_tokens_of_a_batch_are_those_of_so_many_sentences_on_average() -> None:
    assert tokens_of(2, [(3, 1), (5, 2), (0, 0)]) == 8  # 2 x 11 / 3, rounded up


def test_tokens_and_cells_of_a_batch() -> None:
    lengths = [(3, 1), (1, 4)]
    assert tokens([0, 1], lengths) == 9
    assert cells([0, 1], lengths) == 2 * (3 + 4)


def test_sample_is_spread_and_has_the_largest() -> None:
    lengths = [(1,)] * 9 + [(50,)]
    batches = [[k] for k in range(10)]
    found = sample(batches, lengths, count=3)
    assert found.spread == [[1], [5], [8]] and found.epoch == 10
    found = sample([*batches[:9], [9, 9]], lengths, count=1)
    assert found.batches == [[5], [9, 9]]
    assert sample(batches, lengths, count=99).spread == batches
