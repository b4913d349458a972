"""`Cell`: a plain function when it is called, and one program for all sentences when scanned."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.cell import CACHED_PROGRAMS


def counting_cell():
    """A cell that counts how often its function runs."""

    @db.cell
    def cell(x, h, p):
        calls.append(x.shape)
        h = F.tanh(F.linear(x, p.W) + p.scale * h)
        return h, h

    calls = []
    return cell, calls


def parameters(width=3, value=1.0, scale=0.5):
    return SimpleNamespace(W=db.Parameter(np.full((2, width), value, np.float32)), scale=scale)


def scan(cell, params, width=3, lengths=(2, 0, 5), dtype="float32"):
    with db.Graph(dtype=dtype) as graph:
        xs = [F.constant(graph, 1.0, (length, width)) for length in lengths]
        return [db.scan(cell, x, 2, params)[0].value for x in xs]


def test_a_cell_keeps_its_name_and_docstring():
    @db.cell
    def gate(x, h, p):
        """Opens and shuts."""
        return h, h

    assert repr(gate) == "<cell gate>"
    assert (gate.__name__, gate.__doc__) == ("gate", "Opens and shuts.")


def test_called_on_nodes_it_is_traced_twice_to_see_whether_it_builds_the_same():
    cell, calls = counting_cell()
    params = parameters()
    for _ in range(2):
        with db.Graph() as graph:
            x, h = F.constant(graph, 1.0, (3,)), F.constant(graph, 0.0, (2,))
            for _ in range(3):
                y, h = cell(x, h, params)
            assert np.isfinite(y.value).all()
    assert calls == [(3,), (3,)]
    assert not cell.programs


def test_it_is_traced_once_for_all_lengths_and_graphs():
    cell, calls = counting_cell()
    params = parameters()
    for lengths in ((1,), (0, 0), (7, 2, 9), ()):
        scan(cell, params, lengths=lengths)
    assert len(calls) == len(cell.programs) == 1


def test_another_width_or_dtype_is_another_program():
    cell, calls = counting_cell()
    scan(cell, parameters(3), 3)
    scan(cell, parameters(4), 4)
    double = SimpleNamespace(W=db.Parameter(np.ones((2, 3))), scale=0.5)
    scan(cell, double, 3, dtype="float64")
    assert len(calls) == len(cell.programs) == 3


def test_a_replaced_parameter_is_seen():
    cell, calls = counting_cell()
    params = parameters()
    before = scan(cell, params)[0]
    params.W = db.Parameter(np.zeros((2, 3), np.float32))
    assert not np.array_equal(scan(cell, params)[0], before)
    assert np.array_equal(scan(cell, params)[0], np.zeros((2, 2)))
    assert len(calls) == 2


def test_a_parameter_changed_in_place_needs_no_new_program():
    cell, calls = counting_cell()
    params = parameters()
    scan(cell, params)
    params.W.value[...] = 0
    assert np.array_equal(scan(cell, params)[0], np.zeros((2, 2)))
    params.W.value = np.full((2, 3), 9.0, np.float32)
    assert np.allclose(scan(cell, params)[0], 1)
    assert len(calls) == 1


def test_a_changed_number_is_seen_and_its_return_finds_the_old_program():
    cell, calls = counting_cell()
    params = parameters()
    first = scan(cell, params)[0]
    params.scale = 0.0
    assert not np.array_equal(scan(cell, params)[0], first)
    params.scale = 0.5
    assert np.array_equal(scan(cell, params)[0], first)
    assert len(calls) == 2


def test_parameters_in_another_object_are_the_same_parameters():
    cell, calls = counting_cell()
    params = parameters()
    with db.Graph() as graph:
        for length in (1, 4, 2):
            fresh = SimpleNamespace(**vars(params))  # as a model may make it for each sentence
            db.scan(cell, F.constant(graph, 1.0, (length, 3)), 2, fresh)
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [
            3,
            3,
            3,
        ]  # input, scan, last state
    assert len(calls) == 1


def test_two_models_take_turns_without_new_programs():
    cell, calls = counting_cell()
    models = [parameters(value=value) for value in (0.1, -0.1)]
    for _ in range(3):
        one, other = [scan(cell, params)[0] for params in models]
        assert np.array_equal(one, -other)
    assert len(calls) == 2


@pytest.mark.usefixtures("young_heap")
def test_old_programs_and_their_parameters_are_let_go():
    cell, _ = counting_cell()
    first = parameters()
    weight = weakref.ref(first.W)
    scan(cell, first)
    del first
    for _ in range(CACHED_PROGRAMS + 1):
        scan(cell, parameters(), lengths=(1,))
    gc.collect()
    assert len(cell.programs) == CACHED_PROGRAMS
    assert weight() is None


def test_a_program_that_is_used_stays():
    cell, calls = counting_cell()
    params = parameters()
    for _ in range(CACHED_PROGRAMS):
        scan(cell, params, lengths=(1,))
        scan(cell, parameters(), lengths=(1,))
    count = len(calls)
    scan(cell, params)
    assert len(calls) == count
