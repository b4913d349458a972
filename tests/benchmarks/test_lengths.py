import numpy as np
import pytest

from benchmarks.lengths import (
    LONGEST,
    ONE_LONG,
    SHORTEST,
    Batch,
    Corpus,
    draw_lengths,
    mean_padding_ratio,
)

CORPUS = Corpus(source_vocabulary=50, target_vocabulary=7, is_aligned=False)


def rng():
    return np.random.default_rng(3)


def test_lengths_have_the_promised_mean_and_bounds():
    lengths = draw_lengths(rng(), 100_000)
    assert lengths.min() >= SHORTEST and lengths.max() == LONGEST
    assert lengths.mean() == pytest.approx(21.9, abs=0.15)


def test_random_batches_of_64_pad_like_the_brown_corpus():
    batches = Corpus(50, 7, is_aligned=True).random_batches(rng(), 1000, 64)
    assert mean_padding_ratio(batches) == pytest.approx(3.18, abs=0.06)


def test_ids_lie_in_their_vocabularies():
    batch = CORPUS.random_batches(rng(), 1, 200)[0]
    assert set(np.concatenate(batch.sources)) == set(range(50))
    assert set(np.concatenate(batch.targets)) == set(range(7))


def test_tags_are_as_long_as_their_words_and_translations_are_not():
    tagged = Corpus(50, 7, is_aligned=True).random_batches(rng(), 1, 64)[0]
    assert [len(s) for s in tagged.sources] == [len(t) for t in tagged.targets]
    translated = CORPUS.random_batches(rng(), 1, 64)[0]
    assert [len(s) for s in translated.sources] != [len(t) for t in translated.targets]


@pytest.mark.parametrize("is_aligned", [True, False])
def test_bucketed_batches_hold_the_same_tokens_and_hardly_any_padding(is_aligned):
    corpus = Corpus(50, 7, is_aligned=is_aligned)
    tokens = 2800
    batches = corpus.bucketed_batches(rng(), 6, tokens, 64)
    assert len(batches) == 6
    assert all(abs(batch.num_tokens - tokens) <= 2 * LONGEST for batch in batches)
    assert mean_padding_ratio(batches) < 1.05
    longest = [max(map(len, batch.targets)) for batch in batches]
    assert longest == sorted(longest) and longest[0] < 15 and longest[-1] > 35


def test_shuffling_keeps_pairs_together():
    batch = Batch([np.full(n, n) for n in range(20)], [np.full(1, n) for n in range(20)])
    shuffled = batch.shuffled(rng())
    lengths = [len(source) for source in shuffled.sources]
    assert lengths == [int(target[0]) for target in shuffled.targets]
    assert sorted(lengths) == list(range(20)) != lengths


def test_padding_ratio_counts_both_sides():
    batch = Batch([np.zeros(1), np.zeros(3)], [np.zeros(2), np.zeros(2)])
    assert batch.padding_ratio == (6 + 4) / 8


def test_other_kinds_of_lengths_are_all_alike_or_with_one_long_in_64():
    alike = Corpus(50, 7, is_aligned=True, mean=16.0, kind="equal").lengths(rng(), 5)
    assert alike.tolist() == [[16, 16]] * 5
    mixed = Corpus(50, 7, is_aligned=True, kind="one-long").lengths(rng(), 130)
    assert np.flatnonzero(mixed[:, 0] == ONE_LONG).tolist() == [63, 127]
    bounded = Corpus(50, 7, is_aligned=True, mean=160.0, bounds=(24, 512)).lengths(rng(), 3_000)
    assert bounded.min() >= 24 and bounded.max() == 512
