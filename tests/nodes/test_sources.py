import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, VocabularyError
from dynbatch.kernels.cuda.runtime.queue import queue


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(4)[::-1],
        np.array([True, False]),
        [[1, 2], [3, 4]],
        7,
    ],
)
def test_any_numbers_are_taken_and_converted(array):
    with db.Graph() as graph:
        value = F.input(graph, array).value
        assert value.dtype == np.float32
        assert np.array_equal(value, np.asarray(array))


def test_inputs_of_all_shapes_are_one_batch():
    with db.Graph() as graph:
        for array in (1.0, [1.0, 2.0], np.ones((3, 4)), np.zeros((0, 2))):
            F.input(graph, array)
        graph.forward()
        assert graph.statistics.batches == 1


def test_a_constant_is_one_number_everywhere():
    with db.Graph() as graph:
        assert F.constant(graph, 2.5, (2, 3)).value.tolist() == [[2.5] * 3] * 2
        assert F.constant(graph, 2.5).value == 2.5


def test_a_lookup_gives_rows_in_order_with_repetitions():
    table = db.Parameter(np.arange(8.0).reshape(4, 2))
    with db.Graph(dtype="float64") as graph:
        rows = F.lookup(graph, table, [3, 0, 3])
        assert rows.value.tolist() == [[6, 7], [0, 1], [6, 7]]
        assert F.lookup(graph, table, []).value.shape == (0, 2)


@pytest.mark.parametrize(
    ("ids", "position"), [([0, 4], 1), ([-1], 0), ([1, 2, 1 << 40], 2), ([3, -(1 << 60)], 1)]
)
def test_an_id_outside_the_table_is_named_with_its_position(ids, position):
    table = db.Parameter(np.zeros((4, 2), np.float32))
    with (
        db.Graph() as graph,
        pytest.raises(VocabularyError, match=f"id {ids[position]} at position {position} of"),
    ):
        F.lookup(graph, table, ids)


def test_uses_of_a_parameter_as_a_value_are_one_batch_with_one_gradient():
    parameter = db.Parameter(np.array([1.0, 2.0]))
    with db.Graph(dtype="float64") as graph:
        losses = [F.sum(F.parameter(graph, parameter) * k) for k in (1.0, 2.0, 3.0)]
        graph.backward(F.sum(losses))
        assert "ParameterNode 3" in " ".join(graph.explain().split())
    assert parameter.grad.tolist() == [6, 6]


def test_reading_a_parameter_does_not_give_its_memory_away():
    parameter = db.Parameter(np.ones(2))
    with db.Graph(dtype="float64") as graph:
        F.parameter(graph, parameter).value[...] = 5
    assert parameter.value.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "swapped"),
    [
        ("input", lambda graph, p: F.input(np.ones((2, 3)), graph)),
        ("input", lambda graph, p: F.input([1.0], graph)),
        ("constant", lambda graph, p: F.constant(2.0, graph)),
        ("constant", lambda graph, p: F.constant(np.float32(2), (3,))),
        ("lookup", lambda graph, p: F.lookup(p, graph, [0])),
        ("lookup", lambda graph, p: F.lookup(np.ones(2, np.float32), p, [0])),
        ("parameter", lambda graph, p: F.parameter(p, graph)),
    ],
)
def test_something_else_in_the_place_of_the_graph_is_named(name, swapped):
    parameter = db.Parameter(np.ones((4, 2), np.float32))
    with db.Graph() as graph, pytest.raises(ArgumentError, match="the graph comes first") as caught:
        swapped(graph, parameter)
    assert str(caught.value).startswith(f"{name}: graph is ")
    assert "test_sources.py" in str(caught.value)


def test_a_gpu_brings_inputs_up_with_its_tables_as_planned(cuda):
    with db.Graph("cuda") as graph:
        for rows in (3, 5):
            F.input(graph, np.ones((rows, 8)))
        planned, before = graph.estimate().tables_bytes, queue().uploaded_bytes
        graph.forward()
    assert queue().uploaded_bytes - before == 4 * 8 * (3 + 5)
    assert planned == 4 * 8 * (3 + 5)
