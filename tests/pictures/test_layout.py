from itertools import pairwise

import pytest

from dynbatch.pictures.layout import layers_of, ordered, placed, with_bends

TREE = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]


def laid_out(keys, edges):
    rows, paths = with_bends(layers_of(keys, edges), edges)
    rows = ordered(rows, paths, {key: key for key in keys})
    width = {key: 10.0 for row in rows for key in row}
    return rows, paths, placed(rows, paths, width, 5)


def test_a_parent_stands_in_the_middle_above_its_children():
    rows, _, middle = laid_out(range(7), TREE)
    assert rows == [[0, 1, 2, 3], [4, 5], [6]]
    assert middle[4] == pytest.approx((middle[0] + middle[1]) / 2)
    assert middle[6] == pytest.approx((middle[4] + middle[5]) / 2)


def test_boxes_of_any_width_that_nothing_joins_stand_side_by_side_around_the_middle():
    middle = placed([[0, 1, 2]], [], {0: 10.0, 1: 50.0, 2: 20.0}, 5)
    assert middle == {0: -42.5, 1: -7.5, 2: 32.5}


def test_a_leaf_stands_just_below_its_reader():
    layer = layers_of(range(5), [(0, 2), (1, 2), (2, 4), (3, 4)])
    assert layer == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}


def test_crossed_layers_are_uncrossed():
    rows, _, _ = laid_out(range(6), [(0, 5), (1, 4), (2, 3)])
    assert rows[0] in ([0, 1, 2], [2, 1, 0])
    assert [5 - key for key in rows[1]] == rows[0]


def test_long_edges_bend_in_each_layer_that_they_pass():
    rows, paths, middle = laid_out(range(4), [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)])
    for path in paths:
        layers = [next(k for k, row in enumerate(rows) if key in row) for key in path]
        assert layers == list(range(layers[0], layers[0] + len(path)))
    assert len([key for key in middle if key < 0]) == 2  # both long edges leave 0 as one


def test_neighbours_never_overlap():
    edges = [(source, reader) for source in range(9) for reader in (9, 10)]
    rows, _, middle = laid_out(range(11), edges)
    for row in rows:
        assert all(middle[b] - middle[a] >= 15 - 1e-9 for a, b in pairwise(row))
