"""Backward programs: the operators of an LSTM's."""

import pytest

import dynbatch as db
from dynbatch.compiler.ir import OpCode
from tests.cells.cell_cases import CASES


def compiled(name):
    case = CASES[name]
    with db.Graph(dtype="float64") as graph:
        return case.cell.compiled(graph, case.form, (), case.batch().params)


@pytest.mark.parametrize("name", ["lstm", "lstm_by_gates"])
def test_a_step_back_of_an_lstm_has_five_derivatives_and_one_product(name):
    codes = [op.opcode for op in compiled(name).backward_program.ops]
    assert codes.count(OpCode.PARTIAL) == 5 and codes.count(OpCode.LINEAR_GRADIENT) == 1
    assert codes.count(OpCode.BINARY) == 8 and len(codes) == 5 + 1 + 8 + codes.count(OpCode.COPY)


def test_both_maps_of_an_lstm_share_one_gradient():
    program = compiled("lstm").backward_program
    assert program.of_maps[0] is program.of_maps[1]
