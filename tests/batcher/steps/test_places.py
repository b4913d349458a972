import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.steps.places import stretch
from dynbatch.kernels import move

LENGTHS = (2, 1, 3)


@pytest.fixture
def tables(monkeypatch):
    """The number of moves in each table that was run."""
    found = []
    run = move.run

    def counted(source, target, moves, add=False):
        found.append(len(moves))
        return run(source, target, moves, add)

    monkeypatch.setattr(move, "run", counted)
    return found


def parts(x):
    """Two operators of a kind, which read columns of one value."""
    return F.sum(F.tanh(x[:, :2]) * F.tanh(x[:, 2:]))


def gradients(function):
    xs = []
    with db.Graph(dtype=np.float64) as graph:
        for length in LENGTHS:
            xs.append(F.input(graph, np.arange(4.0 * length).reshape(length, 4)).keep())
        graph.backward(F.mean([function(x) for x in xs]))
        return [x.gradient for x in xs]


def test_columns_of_all_calls_of_a_block_are_one_move(tables):
    expected = gradients(parts)
    tables.clear()
    found = gradients(db.block(parts))
    # Forward and backward, one for each operator. What backward of the product and of the columns
    # writes is all of a gradient: nothing is added to zeros.
    assert tables == [2, 2]
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, reference)


def test_gradients_reach_nodes_in_any_order_and_those_read_twice(tables):
    with db.Graph(dtype=np.float64) as graph:
        xs = [F.input(graph, [float(k)]).keep() for k in range(3)]
        ys = [F.tanh(x).keep() for x in xs]
        read = [ys[2], xs[0], ys[2], ys[1]]
        doubled = [node * (k + 1.0) for k, node in enumerate(read)]
        graph.backward(F.sum([F.sum(node) for node in doubled]))
        assert [float(y.gradient[0]) for y in ys] == [0.0, 4.0, 4.0]
        assert xs[0].gradient[0] == pytest.approx(2.0)
    assert max(tables) > 1


def test_nodes_lie_in_a_stretch_only_in_their_order():
    with db.Graph() as graph:
        xs = [F.input(graph, np.zeros((length, 2))) for length in LENGTHS]
        graph.forward()
        assert stretch(xs) == (xs[0]._block, 0)
        assert stretch(xs[1:]) == (xs[0]._block, 4)
        assert stretch(xs[::-1]) is None and stretch([xs[0], xs[2]]) is None
