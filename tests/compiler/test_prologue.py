"""The operators around the loop: ordinary nodes of one sentence, as few as there can be."""

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from tests.cells.cell_cases import CASES, D, H


def nodes_of(cell, states, params, memory=None):
    """Type names of the nodes that one scan of three tokens makes."""
    with db.Graph(dtype="float64") as graph:
        xs = F.constant(graph, 1.0, (3, D))
        before = len(graph)
        db.scan(cell, xs, states, params, memory(graph) if memory else None)
        return [type(node).__name__ for node in graph._nodes[before:]]


def test_an_lstm_is_a_scan_and_its_last_states():
    case = CASES["lstm"]
    assert nodes_of(case.cell, (H, H), case.batch().params) == ["Scan", "Port", "Port"]


def test_gates_of_a_gru_are_not_cut_in_nodes():
    case = CASES["gru"]
    assert nodes_of(case.cell, H, case.batch().params) == ["Scan", "Port"]


def test_a_parameter_used_as_a_value_is_made_as_often_as_the_cell_makes_it():
    case = CASES["parameters_as_values"]
    kinds = nodes_of(case.cell, H, case.batch().params)
    assert kinds.count("ParameterNode") == 3
    assert kinds.count("Expand") == 2  # tokens meet two of them; the third stays one row


def test_a_value_of_the_sentence_is_repeated_once_however_often_it_is_read():
    @db.cell
    def cell(x, h, p):
        shift = F.constant(x.graph, 0.5, (D,))
        h = F.tanh(h * shift + x * shift + shift)
        return h - shift, h

    kinds = nodes_of(cell, D, None)
    assert kinds.count("Input") == kinds.count("Expand") == 1


def test_a_memory_of_any_length_meets_a_parameter():
    @db.cell
    def cell(x, h, p, memory):
        h = F.attention(h + x, memory * F.parameter(x.graph, p) + 1)
        return h, h

    parameter = db.Parameter(np.arange(float(D)))
    with db.Graph(dtype="float64") as graph:
        for length in (4, 0, 1):
            memory = F.constant(graph, 1.0, (length, D))
            ys, _ = db.scan(cell, F.constant(graph, 0.0, (2, D)), D, parameter, memory)
            expected = np.arange(float(D)) + 1 if length else np.zeros(D)
            assert np.allclose(ys.value, expected)
    assert len(cell.programs) == 1


def test_several_exports_are_cut_from_one_scan():
    case = CASES["output_is_several_things"]
    kinds = nodes_of(case.cell, H, case.batch().params)
    assert kinds.count("Scan") == 1
    assert kinds[-2:] == ["Concat", "Port"]
