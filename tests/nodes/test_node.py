import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError


def test_operators_with_numbers_on_either_side():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0, 4.0])
        for node, expected in (
            (x + 1, [2, 3, 5]),
            (1 + x, [2, 3, 5]),
            (x - 1, [0, 1, 3]),
            (1 - x, [0, -1, -3]),
            (x * 2, [2, 4, 8]),
            (2 * x, [2, 4, 8]),
            (x / 2, [0.5, 1, 2]),
            (2 / x, [2, 1, 0.5]),
            (-x, [-1, -2, -4]),
            (x**2, [1, 4, 16]),
            (np.float32(3) * x, [3, 6, 12]),
            (x + np.array(1), [2, 3, 5]),
        ):
            assert node.value.tolist() == expected


def test_an_array_is_not_broadcast_over_nodes():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(DtypeError, match="a node or a number expected"):
            _ = np.ones(2) * x


def test_indexing_and_length():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        assert (len(x), len(x[0])) == (3, 2)
        assert x[1].value.tolist() == [3, 4]
        assert x[-1:].value.tolist() == [[5, 6]]
        assert x[0][1].value == 2


def test_an_error_shows_eight_inputs_and_counts_the_rest():
    with db.Graph() as graph:
        with pytest.raises(ShapeError) as caught:
            F.concat([F.input(graph, np.ones((2 + (k == 9), 3))) for k in range(10)])
    lines = str(caught.value).splitlines()
    assert [line[2] for line in lines[1:9]] == list("abcdefgh")
    assert lines[9] == "  … 2 more inputs"


def test_a_node_says_what_it_is():
    with db.Graph() as graph:
        assert repr(F.tanh(F.input(graph, np.zeros((3, 4))))) == "Tanh #1 (3, 4)"
