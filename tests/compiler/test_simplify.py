"""Operators that compute twice, or to no effect, are left out; results stay equal."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan.arguments import ScanForm
from dynbatch.compiler.ir import OpCode
from tests.cells.step_by_step import Batch, assert_scan_equals_steps, sentences

WIDTH = 3


def parameters():
    weight = np.random.default_rng(2).standard_normal((WIDTH, WIDTH))
    return SimpleNamespace(U=db.Parameter(weight, "U"))


def simplified(step):
    """The simplifications of a cell, and the program of its forward pass."""
    with db.Graph(dtype="float64") as graph:
        loop = db.cell(step).compiled(graph, ScanForm(WIDTH, (WIDTH,), True), (), parameters())
    return loop.simplified, loop.program


def check_values(step):
    """Compare values and gradients with the steps called one by one."""
    params = parameters()
    batch = Batch(sentences(WIDTH, (WIDTH,)), params, [params.U])
    assert_scan_equals_steps(db.cell(step), batch)


def computed_twice(x, h, p):
    h = F.tanh(F.linear(h, p.U) + x) * F.tanh(F.linear(h, p.U) + x)
    return h, h


def test_equal_operators_run_once():
    counts, program = simplified(computed_twice)
    assert counts.shared == 3 + 1  # the map, the sum, the function; a product of backward
    assert [op.opcode for op in program.ops].count(OpCode.LINEAR) == 1
    check_values(computed_twice)


def operands_exchanged(x, h, p):
    h = F.tanh(h + x) * F.tanh(x + h) - F.tanh(h - x) * F.tanh(x - h)
    return h, h


def test_sums_and_products_are_equal_with_their_operands_exchanged():
    _, program = simplified(operands_exchanged)
    functions = [op for op in program.ops if op.opcode is OpCode.UNARY]
    assert sum(op.output.width for op in functions) == 3 * WIDTH  # of one sum, two differences
    check_values(operands_exchanged)


def numbers_apart(x, h, p):
    h = F.tanh(h / 2.0 + h / 4.0 + F.maximum(h, 0.0) + F.maximum(h, 1.0) + x)
    return h, h


def test_functions_of_other_numbers_are_not_equal():
    assert simplified(numbers_apart)[0].shared == 0
    check_values(numbers_apart)


def dropped_twice(x, h, p):
    h = F.tanh(F.dropout(h, 0.5) + F.dropout(h, 0.5) + x)
    return h, h


def test_dropout_of_one_value_is_never_shared():
    counts, program = simplified(dropped_twice)
    assert counts.shared == 0
    assert sum(op.is_multiply for op in program.ops) == 2


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x * 1.0,
        lambda x: x + 0.0,
        lambda x: x - 0.0,
        lambda x: x / 1.0,
        lambda x: F.negative(-x),
    ],
)
def test_what_has_no_effect_goes(same):
    def step(x, h, p):
        h = F.tanh(same(F.linear(h, p.U)) + x)
        return h, h

    counts, program = simplified(step)
    assert counts.identities >= 1
    assert len(program.ops) == 3
    check_values(step)


def test_an_output_is_a_value_of_its_own_though_it_equals_another():
    def step(x, h, p):
        h = F.tanh(h + x)
        return h * 1.0, h

    check_values(step)


def test_two_factors_become_one():
    def step(x, h, p):
        h = F.tanh(2.0 * (0.25 * h) + x)
        return h, h

    counts, program = simplified(step)
    assert counts.folded == 1
    assert [op.number for op in program.ops if op.opcode is OpCode.WITH_NUMBER] == [0.5]
    check_values(step)


def test_factors_whose_product_leaves_the_range_stay_two():
    def step(x, h, p):
        h = F.tanh(1e30 * (1e30 * h) + x)
        return h, h

    assert simplified(step)[0].folded == 0


def test_explain_says_what_was_left_out():
    params = parameters()
    with db.Graph(dtype="float64") as graph:
        xs = F.input(graph, np.ones((4, WIDTH)))
        ys, _ = db.scan(db.cell(computed_twice), xs, WIDTH, params)
        graph.backward(F.sum(ys))
        assert "simplified: 4 computed once for several" in graph.explain()
