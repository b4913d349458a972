"""Compiled cells: the LSTM's program as text, how many kernels a step is, what is kept."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler.ir import OpCode
from dynbatch.compiler.numpy.loop import PRODUCTS
from dynbatch.compiler.traced import is_unchanged
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES, D, H
from tests.cells.step_by_step import LENGTHS

GOLDEN = Path(__file__).with_name("lstm_program.txt")


def compiled(name):
    """The compiled form of one of the cells."""
    case = CASES[name]
    batch = case.batch()
    with db.Graph(dtype="float64") as graph:
        return case.cell.compiled(graph, case.form, (), batch.params)


def scanned(program_lengths, **graph_options):
    """Statistics of a graph with LSTM scans of these lengths, forward and, with `grad`, back."""
    case = CASES["lstm"]
    batch = case.batch()
    with db.Graph(dtype="float64", **graph_options) as graph:
        losses = []
        for length in program_lengths:
            ys, _ = db.scan(case.cell, F.constant(graph, 1.0, (length, D)), (H, H), batch.params)
            losses.append(F.sum(ys))
        if graph.grad:
            graph.backward(F.sum(losses))
        else:
            graph.forward()
    return graph.statistics


def test_the_program_of_an_lstm():
    """If a change of the program is meant, put `str(compiled("lstm"))` in that file."""
    assert str(compiled("lstm")) == GOLDEN.read_text()


def test_gates_spelt_out_one_by_one_run_as_the_same_products():
    for name in ("lstm", "lstm_by_gates"):
        loop = compiled(name)
        assert len(loop.maps) == 2 and loop.map_groups == [(0, 1)]
        products = [[op.opcode for op in ops if op.opcode in PRODUCTS] for ops in loop.numpy.ops]
        assert products == [[OpCode.LINEAR], [OpCode.LINEAR_GRADIENT]]


def test_an_lstm_step_is_eleven_operators_and_fourteen_back():
    program = compiled("lstm")
    assert program.launches == 11
    assert program.launches_backward == 14


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("grad", [False, True])
def test_the_first_step_from_zeros_runs_no_kernel_of_the_state(grad):
    program = compiled("lstm")
    none, one, two = [scanned([length], grad=grad).launches for length in (0, 1, 2)]
    a_step = program.launches + (program.launches_backward if grad else 0)
    of_state = 1 + grad
    assert two - one == a_step
    assert one - none == a_step - of_state


def test_a_weight_of_the_state_is_not_read_at_the_first_step_from_zeros():
    case = CASES["lstm"]
    batch = case.batch()
    batch.params.U.value[...] = np.inf
    with db.Graph(dtype="float64") as graph:
        xs = F.constant(graph, 1.0, (1, D))
        ys, _ = db.scan(case.cell, xs, (H, H), batch.params)
        loss = F.sum(ys)
        graph.backward(loss)
        assert np.isfinite(loss.value)
        assert not dense_gradient(batch.params.U).any()


@pytest.mark.usefixtures("one_thread")
def test_launches_are_counted_for_each_step_whatever_the_number_of_sentences():
    program = compiled("lstm")
    five, nine = [scanned([length] * 3, grad=False).launches for length in (5, 9)]
    assert nine - five == 4 * program.launches
    assert scanned([9, 2, 0, 1, 9, 8] * 10, grad=False).launches == nine
    five, nine = [scanned([length] * 3).launches for length in (5, 9)]
    assert nine - five == 4 * (program.launches + program.launches_backward)


def test_a_parameter_is_named_once_and_only_while_it_is_trained():
    case = CASES["minimal_gated_unit"]
    params = case.batch().params
    with db.Graph(dtype="float64") as graph:
        ys = db.scan(case.cell, F.constant(graph, 1.0, (2, D)), H, params, return_state=False)
    names = [parameter.name for parameter in ys.parameters()]
    assert sorted(names) == ["U_f", "U_h", "W_f", "W_h", "b_f", "b_h"]
    for op in ys.cell.maps.values():
        for piece in op.pieces:
            piece.weight.frozen = True
    assert sorted([parameter.name for parameter in ys.parameters()]) == ["b_f", "b_h"]


def test_maps_of_one_input_are_one_product():
    assert len(compiled("lstm_by_gates").maps) == 2
    assert len(compiled("gru").maps) == 2
    assert len(compiled("minimal_gated_unit").maps) == 3  # one of x, one of h, one of f * h


def test_numbers_that_have_no_literal_are_named():
    @db.cell
    def clipped(x, h, p):
        h = F.clip(h + x, low=-0.5)
        return h, h

    with db.Graph() as graph:
        ys, _ = db.scan(clipped, F.constant(graph, -1.0, (3, 2)), 2)
        assert np.array_equal(ys.value, np.full((3, 2), -0.5))


def test_a_program_is_current_while_its_parameters_are_what_it_read():
    program = compiled("lstm")
    params = CASES["lstm"].batch().params
    assert not is_unchanged(params, program.reads)
    own = SimpleNamespace(**{path[-1][1]: value for path, value in program.reads.items()})
    assert is_unchanged(own, program.reads)
    own.W = params.W
    assert not is_unchanged(own, program.reads)


def test_activations_are_proportional_to_the_tokens():
    loss = 8
    one, ten = [scanned(LENGTHS * count).activation_bytes - loss for count in (1, 10)]
    assert ten == 10 * one
