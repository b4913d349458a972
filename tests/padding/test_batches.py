from dynbatch.padding.batches import bucketed_batches, cells, random_batches, sample, tokens

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
