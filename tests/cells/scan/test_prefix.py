"""The prefix layout: who is where; sentences still running are the first rows of every step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.cells.scan import prefix
from dynbatch.cells.scan.prefix import PrefixLayout

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=12)
SHARDS = st.integers(1, 4)


def layout_of(lengths, reverse=False, shards=1):
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return PrefixLayout(np.array(lengths), offsets, reverse, shards)


def test_the_longest_sentence_comes_first_and_steps_follow_each_other():
    layout = layout_of([1, 3, 0, 2])  # rows 0 | 1 2 3 | | 4 5
    (shard,) = layout.shards
    assert shard.sentences.tolist() == [1, 3, 0, 2]
    assert layout.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert shard.steps == [(0, 3, 3, -1), (3, 5, 2, 0), (5, 6, 1, 3)]
    assert layout.previous.tolist() == [-1, -1, -1, 0, 1, 3]
    assert layout.last.tolist() == [2, 5, -1, 4]


def test_in_reverse_the_last_token_of_each_sentence_comes_first():
    layout = layout_of([1, 3, 0, 2], reverse=True)
    assert layout.order.tolist() == [3, 5, 0, 2, 4, 1]
    assert layout.last.tolist() == [2, 5, -1, 4]


@given(LENGTHS, st.booleans(), SHARDS)
def test_order_and_inverse_undo_each_other(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    rows = np.arange(sum(lengths))
    assert np.array_equal(np.sort(layout.order), rows)
    assert np.array_equal(layout.order[layout.inverse], rows)
    assert np.array_equal(layout.inverse[layout.order], rows)


@given(LENGTHS, st.booleans(), SHARDS)
def test_the_running_sentences_are_a_prefix_in_every_step(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    for shard in layout.shards:
        for time, (first, end, running, _) in enumerate(shard.steps):
            rows = layout.order[shard.start + first : shard.start + end]
            assert end - first == running
            assert sentence_of[rows].tolist() == shard.sentences[:running].tolist()
            assert all(length > time for length in shard.lengths[:running])
            assert all(length <= time for length in shard.lengths[running:])


@given(LENGTHS, st.booleans(), SHARDS)
def test_every_sentence_is_walked_token_by_token(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    for sentence, length in enumerate(lengths):
        walked = []
        row = layout.last[sentence]
        while row >= 0:
            walked.append(int(layout.order[row]) - int(offsets[sentence]))
            row = layout.previous[row]
        tokens = [*range(length)]
        assert walked == (tokens if reverse else tokens[::-1])


@given(LENGTHS, st.booleans(), SHARDS)
def test_shards_share_all_sentences_and_rows(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    assert len(layout.shards) == shards
    spans = [(s.span.start, s.span.stop) for s in layout.shards]
    assert [start for start, _ in spans] == [0, *[stop for _, stop in spans[:-1]]]
    assert spans[-1][1] == sum(lengths)
    sentences = np.concatenate([s.sentences for s in layout.shards])
    assert np.array_equal(np.sort(sentences), np.arange(len(lengths)))


@given(LENGTHS, st.booleans(), SHARDS)
def test_a_step_names_the_rows_of_the_step_before(lengths, reverse, shards):
    layout = layout_of(lengths, reverse, shards)
    for shard in layout.shards:
        for first, _, running, before in shard.steps:
            rows = slice(shard.start + first, shard.start + first + running)
            expected = -1 if before < 0 else shard.start + before + np.arange(running)
            assert (layout.previous[rows] == expected).all()


def test_shards_get_long_and_short_sentences_in_turn():
    layout = layout_of([9, 8, 7, 6, 5, 4], shards=2)
    assert [shard.rows for shard in layout.shards] == [9 + 7 + 5, 8 + 6 + 4]


@given(LENGTHS, st.integers(1, 9))
def test_blocks_hold_every_step_once_and_none_is_small(lengths, least):
    (shard,) = layout_of(lengths).shards
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "BLOCK_ROWS", least)
        blocks = shard.blocks
    assert [step for _, _, steps in blocks for step in steps] == list(enumerate(shard.steps))
    for start, end, steps in blocks:
        assert (start, end) == (steps[0][1][0], steps[-1][1][1])
    assert all(end - start >= least for start, end, _ in blocks[:-1])
    assert len(blocks) < 2 or blocks[-1][1] - blocks[-1][0] >= least // 2
