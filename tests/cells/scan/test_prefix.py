"""The prefix layout: who is where; sentences still running are the first rows of every step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.cells.scan.prefix import prefix_layout

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=12)
SHARDS = st.integers(1, 4)


def layout_of(lengths, reverse=False, shards=1):
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return prefix_layout(np.array(lengths), offsets, reverse, shards)


def test_the_longest_sentence_comes_first_and_steps_follow_each_other():
    (shard,) = layout_of([1, 3, 0, 2])  # rows 0 | 1 2 3 | | 4 5
    assert shard.sentences.tolist() == [1, 3, 0, 2]
    assert shard.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert shard.steps == [(0, 3, 3, -1), (3, 5, 2, 0), (5, 6, 1, 3)]
    assert shard.earlier().tolist() == [-1, -2, -3, 0, 1, 3]
    assert shard.last().tolist() == [5, 4, 2]


def test_in_reverse_the_last_token_of_each_sentence_comes_first():
    (shard,) = layout_of([1, 3, 0, 2], reverse=True)
    assert shard.order.tolist() == [3, 5, 0, 2, 4, 1]
    assert shard.last().tolist() == [5, 4, 2]


@given(LENGTHS, st.booleans(), SHARDS)
def test_every_row_is_in_one_shard(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    rows = np.concatenate([shard.order for shard in layout])
    assert np.array_equal(np.sort(rows), np.arange(sum(lengths)))


@given(LENGTHS, st.booleans(), SHARDS)
def test_the_running_sentences_are_a_prefix_in_every_step(lengths, reverse, shards):
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    for shard in layout_of(lengths, reverse, shards):
        for time, (first, end, running, _) in enumerate(shard.steps):
            rows = shard.order[first:end]
            assert end - first == running
            assert sentence_of[rows].tolist() == shard.sentences[:running].tolist()
            assert all(length > time for length in shard.lengths[:running])
            assert all(length <= time for length in shard.lengths[running:])


@given(LENGTHS, st.booleans(), SHARDS)
def test_every_sentence_is_walked_token_by_token(lengths, reverse, shards):
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for shard in layout_of(lengths, reverse, shards):
        earlier = shard.earlier()
        for number, row in enumerate(shard.last().tolist()):
            sentence, walked = shard.sentences[number], []
            while row >= 0:
                walked.append(int(shard.order[row]) - int(offsets[sentence]))
                row = earlier[row]
            assert row == -1 - number
            tokens = [*range(lengths[sentence])]
            assert walked == (tokens if reverse else tokens[::-1])
        assert not shard.lengths[shard.running :].any()


@given(LENGTHS, st.booleans(), SHARDS)
def test_shards_share_all_sentences_and_rows(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    assert len(layout) == shards
    spans = [(s.span.start, s.span.stop) for s in layout]
    assert [start for start, _ in spans] == [0, *[stop for _, stop in spans[:-1]]]
    assert spans[-1][1] == sum(lengths)
    sentences = np.concatenate([s.sentences for s in layout])
    assert np.array_equal(np.sort(sentences), np.arange(len(lengths)))


@given(LENGTHS, st.booleans(), SHARDS)
def test_a_step_names_the_rows_of_the_step_before(lengths, reverse, shards):
    for shard in layout_of(lengths, reverse, shards):
        for first, end, running, before in shard.steps:
            expected = -1 - np.arange(running) if before < 0 else before + np.arange(running)
            assert (shard.earlier()[first:end] == expected).all()


def test_shards_get_long_and_short_sentences_in_turn():
    layout = layout_of([9, 8, 7, 6, 5, 4], shards=2)
    assert [shard.rows for shard in layout] == [9 + 7 + 5, 8 + 6 + 4]
