"""A program that a pass has spoilt is found before the next pass."""

import pytest

from dynbatch.compiler.ir import OpCode
from dynbatch.compiler.validate import validate
from tests.compiler.test_differentiate import compiled


def assert_refused(program, problem):
    with pytest.raises(AssertionError, match=f"a bad pass: .*{problem}"):
        validate(program, "a bad pass")


def test_operators_out_of_order_are_found():
    program = compiled("lstm").backward_program
    program.ops.reverse()
    assert_refused(program, "reads what is not made yet")


def test_a_value_that_is_made_again_is_found():
    program = compiled("lstm").program
    program.ops.append(program.ops[-1])
    assert_refused(program, "makes a value again")


def test_an_operand_of_another_width_is_found():
    program = compiled("lstm").program
    op = next(op for op in program.ops if op.is_multiply)
    op.inputs[0] = program.columns(op.inputs[0].base, 0, 1)
    assert_refused(program, "has operands of the wrong width")


def test_columns_that_are_filled_twice_are_found():
    program = compiled("lstm").backward_program
    op = next(op for op in program.ops if op.opcode is OpCode.COPY)
    op.columns[1] = op.columns[0]
    assert_refused(program, "has operands of the wrong width")


def test_a_view_beyond_its_value_is_found():
    program = compiled("lstm").program
    op = next(op for op in program.ops if op.is_multiply)
    op.inputs[0].column = op.inputs[0].base.width
    assert_refused(program, "reads beyond a value")


def test_a_result_that_nothing_makes_is_found():
    program = compiled("lstm").program
    program.ops = program.ops[:-1]
    assert_refused(program, "a result is not made")
