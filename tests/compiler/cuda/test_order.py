"""The order of a step on a GPU: few launches, and products that are added to sums."""

import pytest

from dynbatch.compiler.ir import OpCode
from dynbatch.compiler.lanes import KernelGroup
from tests.cells.cell_cases import CASES
from tests.compiler.test_differentiate import compiled

NAMES = [name for name, case in CASES.items() if not case.memories]


def kinds(items):
    """The kind of each item: a group, or an operator by its opcode."""
    return ["group" if isinstance(item, KernelGroup) else item.opcode.name for item in items]


def test_an_lstm_has_a_product_and_a_group_each_way():
    loop = compiled("lstm").on_device.loop
    assert kinds(loop.forward.items) == ["LINEAR", "group"]
    assert kinds(loop.backward.items) == ["group", "LINEAR_GRADIENT"]


def test_the_gradient_of_a_gru_state_is_added_to_by_its_product():
    step = compiled("gru").on_device.loop.backward
    product = step.items[-1]
    assert product.opcode is OpCode.LINEAR_GRADIENT
    assert len(product.inputs) == 2 and product.output is step.following[0]


def test_a_product_that_is_subtracted_from_is_added_to_the_negative():
    step = compiled("token_map_read_twice").on_device.loop.backward
    assert kinds(step.items) == ["group", "LINEAR_GRADIENT"]


def test_a_sum_that_a_group_reads_stays_in_the_group():
    step = compiled("minimal_gated_unit").on_device.loop.backward
    first = next(item for item in step.items if not isinstance(item, KernelGroup))
    assert len(first.inputs) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_operand_is_made_before_it_is_read(name):
    loop = compiled(name).on_device.loop
    for step in (loop.forward, loop.backward):
        own = {id(value) for op in step.ops for value in op.outputs}
        made = set()
        for op in step.ops:
            assert all(id(x.base) in made for x in op.inputs if id(x.base) in own)
            made |= {id(value) for value in op.outputs}
        made |= {id(state) for state in loop.program.states if step is loop.forward}
        assert all(id(value.base) in made for value in step.following)
