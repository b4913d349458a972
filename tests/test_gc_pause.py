import gc
import sys

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


def test_between_two_mini_batches_it_does_not_look_through_the_nodes():
    before, found = gc.get_threshold(), []
    for _ in range(3):
        with db.Graph() as graph:
            xs = [F.input(graph, [1.0]) for _ in range(10)]
        found.append(gc.get_threshold())
    assert found == [(100_000, *before[1:])] * 3
    del graph
    assert gc.get_threshold()[0] == 100_000  # the nodes still live
    del xs
    assert gc.get_threshold() == before


def test_a_threshold_that_was_set_meanwhile_stays():
    with db.Graph():
        gc.set_threshold(3_000, 7, 7)
    assert gc.get_threshold() == (3_000, 7, 7)


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


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("threshold", [(0, 10, 10), (500_000, 5, 5)])
def test_a_disabled_or_rarer_collector_stays_so(threshold):
    gc.set_threshold(*threshold)
    with db.Graph():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold


@db.cell
def add(x, total):
    return x + total


@db.block
def add_up(xs):
    return F.sum(F.tanh(xs) * F.detach(xs))


def of_calls(graph):
    xs, total = F.input(graph, [[1.0], [2.0]]).keep(), 1
    for k in range(2):
        total = add(xs[k], total)
    return F.sum(db.stack([total]))


def of_blocks(graph):
    return F.mean([add_up(F.input(graph, [[1.0]] * length).keep()) for length in (1, 2, 3)])


@pytest.mark.parametrize("loss", [of_calls, of_blocks])
def test_a_closed_graph_leaves_nothing_to_collect(loss):
    """Nodes, calls, blocks and tables go by themselves: no reference leads back from them."""

    def build():
        with db.Graph() as graph:
            graph.backward(loss(graph), gradient=1.0)

    for _ in range(3):
        build()
    while gc.collect():  # what was left by then takes more than one round, as types of ctypes do
        pass
    gc.disable()
    try:
        build()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_no_python_runs_when_a_graph_goes_as_an_interrupt_would_be_lost_there():
    with db.Graph() as graph:
        pass
    ran = []
    sys.setprofile(lambda frame, event, _: ran.append((event, frame.f_code.co_filename)))
    del graph
    sys.setprofile(None)
    assert [file for event, file in ran if event == "call"] == []
