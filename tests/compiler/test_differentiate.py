"""Backward programs: evaluated operator by operator they give the gradients of the steps."""

from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings

import dynbatch as db
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.compiler.ir import OpCode
from dynbatch.nodes.dropout import InvertedDropout
from tests.cells.cell_cases import CASES
from tests.cells.random_cells import Recipe
from tests.cells.step_by_step import assert_equal_outcomes, outcome, step_by_step, tame_outcome
from tests.cells.test_random_cells import drop_every_third_feature, recipes
from tests.compiler.evaluate import backward_by_operator


class LoopByOperator:
    """Compiles loops whose backward pass is evaluated operator by operator."""

    def __init__(self, compile_loop):
        self._compile = compile_loop

    def __get__(self, loop, owner):
        def compile_loop(program):
            self._compile(loop, program)
            loop.backward = backward_by_operator(loop, loop.backward_program)

        return compile_loop


by_operator = patch.object(CompiledLoop, "__init__", LoopByOperator(CompiledLoop.__init__))


@pytest.mark.parametrize("name", CASES)
def test_a_backward_program_gives_the_gradients_of_the_steps(name):
    case = CASES[name]
    cell, batch = db.cell(case.cell.function), case.batch()
    expected = outcome(step_by_step, cell, batch)
    with by_operator:
        assert_equal_outcomes(outcome(db.scan, cell, batch), expected, 1e-9)


@by_operator
@patch.object(InvertedDropout, "forward_batch", drop_every_third_feature)
@settings(max_examples=40, derandomize=True)
@given(recipes())
def test_the_backward_program_of_a_random_cell_gives_the_gradients_of_the_steps(recipe: Recipe):
    cell, batch = recipe.cell(), recipe.batch()
    expected = tame_outcome(step_by_step, cell, batch)
    assume(expected is not None)
    assert_equal_outcomes(outcome(db.scan, cell, batch), expected, 1e-9)


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
