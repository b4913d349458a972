import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.kernels import move
from dynbatch.kernels.move import Move
from dynbatch.kernels.runtime import parallel

SIZE = 40


def apply(source, target, moves, add=False):
    """The definition, element by element."""
    for m in moves:
        for row in range(m.rows):
            for column in range(m.width):
                value = source[m.source_start + row * m.source_stride + column]
                place = m.target_start + row * m.target_stride + column
                target[place] = target[place] + value if add else value


@st.composite
def tables(draw):
    """Moves within two arrays of SIZE elements: any strides, also negative, and neighbours."""
    source, target = np.arange(SIZE, dtype=np.float64), np.zeros(SIZE)
    moves = []
    for _ in range(draw(st.integers(1, 6))):
        rows, width = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        places = []
        for array in (source, target):
            stride = draw(st.sampled_from([width, width, 5, -width, -4]))
            low, high = min(0, (rows - 1) * stride), max(0, (rows - 1) * stride) + width
            if high - low > SIZE:
                stride, low, high = width, 0, rows * width
            start = draw(st.integers(-low, max(-low, SIZE - high)))
            places += [array, start, stride]
        moves.append(Move(*places, rows, width))
        if draw(st.booleans()):  # the rows that follow, so that merging has something to do
            follows = moves[-1]._replace(
                source_start=places[1] + rows * places[2], target_start=places[4] + rows * places[5]
            )
            if all(0 <= edge <= SIZE for edge in edges(follows)):
                moves.append(follows)
    return source, target, moves


def edges(m: Move) -> list[int]:
    found = []
    for start, stride in ((m.source_start, m.source_stride), (m.target_start, m.target_stride)):
        last = start + (m.rows - 1) * stride
        found += [min(start, last), max(start, last) + m.width]
    return found


@given(tables(), st.booleans())
def test_merged_moves_do_what_the_moves_do(table, add):
    source, target, moves = table
    expected = target.copy()
    apply(source, expected, moves, add)
    move.run(moves, add)
    assert np.array_equal(target, expected)


@given(tables())
def test_backward_adds_the_targets_to_the_sources(table):
    source, target, moves = table
    target[:] = np.random.default_rng(0).standard_normal(SIZE)
    expected = source.copy()
    reversed_moves = [Move(*m[3:6], *m[0:3], m.rows, m.width) for m in moves]
    apply(target, expected, reversed_moves, add=True)
    move.run_backward(moves, add=True)
    np.testing.assert_allclose(source, expected)


def test_neighbours_become_one_move():
    a, b = np.arange(20.0), np.zeros(20)
    blocks = [Move(a, 0, 2, b, 4, 2, 2, 2), Move(a, 4, 2, b, 8, 2, 3, 2)]
    (merged,) = move.merge(blocks)
    assert (merged.source_start, merged.target_start, merged.width) == (0, 4, 10)


def test_columns_of_neighbouring_sentences_become_one_move():
    a, b = np.arange(20.0), np.zeros(30)
    into_columns = [Move(a, 0, 2, b, 0, 5, 2, 2), Move(a, 4, 2, b, 10, 5, 3, 2)]
    (merged,) = move.merge(into_columns)
    assert (merged.rows, merged.width, merged.target_stride) == (5, 2, 5)


def test_moves_between_different_arrays_stay_apart():
    a, b, c = np.arange(4.0), np.zeros(4), np.zeros(4)
    assert len(move.merge([Move(a, 0, 2, b, 0, 2, 1, 2), Move(a, 2, 2, c, 2, 2, 1, 2)])) == 2


def test_empty_moves_vanish():
    a = np.zeros(4)
    assert move.merge([Move(a, 0, 1, a, 0, 1, 0, 3), Move(a, 0, 1, a, 0, 1, 3, 0)]) == []
    assert move.run([]) == 0


def test_bytes_copied_are_returned():
    a, b = np.zeros(20, np.float32), np.zeros(20, np.float32)
    assert move.run([Move(a, 0, 2, b, 0, 5, 3, 2)]) == 3 * 2 * 4


@pytest.mark.parametrize("threads", [1, 2])
def test_large_copies_are_the_same_on_threads(monkeypatch, threads):
    monkeypatch.setattr(move, "WORTH_THREADS", 1)
    monkeypatch.setattr(parallel, "num_threads", lambda: threads)
    a, b = np.arange(6000.0), np.zeros(10000)
    moves = [Move(a, 0, 3, b, 0, 5, 1000, 3), Move(a, 5997, -3, b, 5000, 3, 1000, 3)]
    expected = b.copy()
    apply(a, expected, moves)
    move.run(moves)
    assert np.array_equal(b, expected)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=5), st.integers(1, 3))
def test_row_index_counts_up_inside_every_segment(segments, steps):
    starts = np.array([start for start, _ in segments], np.int64)
    lengths = np.array([length for _, length in segments], np.int64)
    expected = [start + steps * k for start, length in segments for k in range(length)]
    assert move.row_index(starts, lengths, steps).tolist() == expected
