import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.kernels import move
from dynbatch.kernels.c import move as in_c
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel

SIZE = 40


def apply(source, target, moves, add=False):
    """The definition, element by element."""
    for start, stride, target_start, target_stride, rows, width in moves.tolist():
        for row in range(rows):
            for column in range(width):
                value = source[start + row * stride + column]
                place = target_start + row * target_stride + column
                target[place] = target[place] + value if add else value


def table(*moves):
    return np.array(moves, np.int64).reshape(-1, 6)


@st.composite
def tables(draw):
    """Moves within two arrays of SIZE elements: any strides, also negative, and neighbours."""
    moves = []
    for _ in range(draw(st.integers(1, 6))):
        rows, width = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        places = []
        for _ in range(2):
            strides = [width, width, 5, -width, -4] + [0] * (rows == 1)
            stride = draw(st.sampled_from(strides))
            low, high = min(0, (rows - 1) * stride), max(0, (rows - 1) * stride) + width
            if high - low > SIZE:
                stride, low, high = width, 0, rows * width
            start = draw(st.integers(-low, max(-low, SIZE - high)))
            places += [start, stride]
        moves.append([*places, rows, width])
        if draw(st.booleans()):  # the rows that follow, so that merging has something to do
            follows = [places[0] + rows * places[1], places[1], places[2] + rows * places[3]]
            follows += [places[3], rows, width]
            if all(0 <= edge <= SIZE for edge in edges(*follows)):
                moves.append(follows)
    return table(*moves)


def edges(source, source_stride, target, target_stride, rows, width) -> list[int]:
    found = []
    for start, stride in ((source, source_stride), (target, target_stride)):
        last = start + (rows - 1) * stride
        found += [min(start, last), max(start, last) + width]
    return found


@given(tables(), st.booleans())
def test_moves_are_what_they_are_element_by_element(moves, add):
    source, target = np.arange(SIZE, dtype=np.float64), np.zeros(SIZE)
    expected, in_numpy = target.copy(), target.copy()
    apply(source, expected, moves, add)
    assert move.run(source, target, moves, add) == 8 * move.num_elements(moves)
    with library.reference_only():
        move.run(source, in_numpy, moves, add)
    assert np.array_equal(target, expected) and np.array_equal(in_numpy, expected)


@given(tables())
def test_reversed_moves_go_from_target_to_source(moves):
    source, target = np.zeros(SIZE), np.arange(SIZE, dtype=np.float64)
    expected = source.copy()
    apply(target, expected, table(*[[c, d, a, b, *e] for a, b, c, d, *e in moves]), add=True)
    move.run(target, source, move.reverse(moves), add=True)
    np.testing.assert_allclose(source, expected)


def test_neighbours_become_one_move():
    blocks = table([0, 2, 4, 2, 2, 2], [4, 2, 8, 2, 3, 2])
    ((source, _, target, _, rows, width),) = move.merge(blocks)
    assert (source, target, rows, width) == (0, 4, 1, 10)


def test_columns_of_neighbouring_sentences_become_one_move():
    (merged,) = move.merge(table([0, 2, 0, 5, 2, 2], [4, 2, 10, 5, 3, 2]))
    assert merged.tolist() == [0, 2, 0, 5, 5, 2]


def test_empty_moves_vanish():
    a = np.zeros(4)
    assert len(move.merge(table([0, 1, 0, 1, 0, 3], [0, 1, 0, 1, 3, 0]))) == 0
    assert move.run(a, a, table()) == 0


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_large_copies_are_the_same_on_threads(monkeypatch, threads, add):
    monkeypatch.setattr(move, "WORTH_THREADS", 1)
    monkeypatch.setattr(in_c, "WORTH_A_THREAD", 100)
    monkeypatch.setattr(parallel, "num_threads", lambda: threads)
    a, b = np.arange(6000.0), np.zeros(10000)
    moves = table([0, 3, 0, 5, 1000, 3], [5997, -3, 5000, 3, 1000, 3], [9, 3, 2, 5, 1000, 3])
    if not add:
        moves = moves[:2]  # each place once
    expected, in_numpy = b.copy(), b.copy()
    apply(a, expected, moves, add)
    move.run(a, b, moves, add)
    with library.reference_only():
        move.run(a, in_numpy, moves, add)
    assert np.array_equal(b, expected) and np.array_equal(in_numpy, expected)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=5), st.integers(1, 3))
def test_row_index_counts_up_inside_every_segment(segments, steps):
    starts = np.array([start for start, _ in segments], np.int64)
    lengths = np.array([length for _, length in segments], np.int64)
    expected = [start + steps * k for start, length in segments for k in range(length)]
    assert move.row_index(starts, lengths, steps).tolist() == expected
