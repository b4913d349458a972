import gc

import pytest

import dynbatch as db
from dynbatch import nodes as F


@pytest.fixture(autouse=True)
def collector():
    before = gc.get_threshold()
    yield
    db.set_gc_threshold(100_000)
    gc.set_threshold(*before)


def test_the_collector_runs_more_rarely_while_a_graph_is_open():
    before = gc.get_threshold()
    with db.Graph():
        with db.Graph():
            assert gc.get_threshold() == (100_000, *before[1:])
        assert gc.get_threshold() == (100_000, *before[1:])
    assert gc.get_threshold() == before


def test_an_error_leaves_it_as_it_was():
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), db.Graph():
        raise RuntimeError
    assert gc.get_threshold() == before


def test_it_can_be_left_alone():
    before = gc.get_threshold()
    db.set_gc_threshold(None)
    with db.Graph():
        assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="objects >= 1"):
        db.set_gc_threshold(0)


@pytest.mark.parametrize("threshold", [(0, 10, 10), (500_000, 5, 5)])
def test_a_disabled_or_rarer_collector_stays_so(threshold):
    gc.set_threshold(*threshold)
    with db.Graph():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold


def test_a_closed_graph_leaves_nothing_to_collect():
    """Nodes, calls and tables go by themselves: no reference leads back from them."""

    @db.cell
    def add(x, total):
        return x + total

    def build():
        with db.Graph() as graph:
            xs, total = F.input(graph, [[1.0], [2.0]]), 1
            for k in range(2):
                total = add(xs[k], total)
            graph.backward(F.sum(db.stack([total])))

    build()
    while gc.collect():  # what earlier tests left takes more than one round, as types of ctypes do
        pass
    gc.disable()
    try:
        build()
        assert gc.collect() == 0
    finally:
        gc.enable()
