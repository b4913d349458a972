import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, EmptyBatchError, GraphError
from dynbatch.pictures.padding import PARTED, _cells
from tests.pictures.svg import require_clear_text, texts_of

MANY = np.random.default_rng(0).lognormal(3, 0.6, 500).astype(int).tolist()


@pytest.mark.parametrize("lengths", [[1], [3, 5], [0, 0], [7] * 12, MANY[:40], MANY])
def test_a_picture_of_any_mini_batch_has_clear_text(lengths):
    require_clear_text(db.pictures.padding(lengths))


def test_the_numbers_of_cells_are_those_of_the_lengths():
    words = db.pictures.padding([3, 41, 1, 12]).description
    assert "Padded: 164 cells, 65 % of them padding." in words
    assert "Bucketed, in 2 smaller mini-batches: 88 cells" in words  # 2·3 + 2·41
    assert "Packed: 57 cells, 2.9 times fewer" in words


def test_like_lengths_are_not_bucketed():
    assert not any("Bucketed" in text for text in texts_of(db.pictures.padding([7] * 12)))


def test_a_graph_gives_the_lengths_of_its_sentences():
    with db.Graph() as graph:
        losses = [F.sum(F.tanh(F.input(graph, np.ones((n, 2))))) for n in (3, 41, 1, 12)]
        F.mean(losses)
        picture = db.pictures.padding(graph)
    assert picture == db.pictures.padding([3, 41, 1, 12])
    with db.Graph() as open_graph:
        for length in (3, 0):
            F.tanh(F.input(open_graph, np.ones((length, 2))))
        assert db.pictures.padding(open_graph) == db.pictures.padding([3, 0])
    with pytest.raises(GraphError, match="the graph is closed"):
        db.pictures.padding(graph)


@pytest.mark.parametrize(
    "given, error, words",
    [
        ([], EmptyBatchError, "there is no sentence"),
        ([3, 2.5], ArgumentError, "a length is 2.5"),
        ([-1], ArgumentError, "a length is -1"),
        (None, ArgumentError, "lengths is None"),
        ("abc", ArgumentError, "lengths is text"),
    ],
)
def test_what_is_not_lengths_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        db.pictures.padding(given)


def test_cells_are_apart_where_there_is_room_and_else_one_box():
    wide, narrow = [_cells((2.0, 3.0), (size, PARTED), 1, 4) for size in (PARTED, PARTED / 2)]
    assert [left for left, *_ in wide] == [2 + k * PARTED for k in (1, 2, 3)]
    assert {across for _, _, across, _ in wide} == {PARTED - 1.5}
    assert narrow == [(2 + PARTED / 2, 3.0, 3 * PARTED / 2, PARTED - 1.5)]
