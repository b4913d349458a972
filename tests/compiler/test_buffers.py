"""Values share memory where one has been read before the other is made."""

import itertools

import pytest

from dynbatch.compiler.buffers import Role
from dynbatch.compiler.ir import OpCode
from tests.cells.cell_cases import CASES, H
from tests.compiler.test_differentiate import compiled


def test_the_gates_of_an_lstm_stay_where_the_map_of_the_tokens_was():
    storage = compiled("lstm").storage
    assert [buffer.width for buffer in storage.packed] == [4 * H, H, H, H]  # gates, c, tanh(c), h


def test_gradients_of_gates_lie_side_by_side():
    loop = compiled("lstm")
    assert [buffer.width for buffer in loop.gradients.packed] == [4 * H]
    whole = loop.gradients.buffer_of(loop.backward_program.of_maps[0])
    makers = [op for op in loop.backward_program.ops if op.opcode is OpCode.PARTIAL]
    assert sum(loop.gradients.buffer_of(op.output)[0] is whole[0] for op in makers) == 4


def test_carried_gradients_are_made_in_the_place_of_the_old_ones():
    loop = compiled("lstm")
    for k, value in enumerate(loop.backward_program.following):
        buffer, column = loop.gradients.buffer_of(value)
        assert (buffer.role, buffer.label, column) == (Role.LEFT_GRADIENT, k, 0)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.memories])
def test_values_in_one_place_are_never_needed_at_once(name):
    """Each value must still be there when it is read, whatever was made in its columns since."""
    loop = compiled(name)
    for program, storage in (
        (loop.program, loop.storage),
        (loop.backward_program, loop.gradients),
    ):
        held = {}
        ops = program.every_op()
        own = {id(value) for op in ops for value in op.outputs}
        for op in ops:
            for x in op.inputs:
                if id(x.base) in own:
                    assert_holds(held, storage, x)
            for value in op.outputs:
                buffer, column = storage.buffer_of(value)
                for at in range(value.width):
                    held[buffer.name, column + at] = (id(value), at)
        for value in program.results():
            if id(value.base) in own:
                assert_holds(held, storage, value)


def assert_holds(held, storage, value):
    buffer, column = storage.buffer_of(value)
    for at in range(value.width):
        assert held[buffer.name, column + at] == (id(value.base), value.column + at)


def test_buffers_of_both_passes_have_names_of_their_own():
    loop = compiled("gru")
    groups = [loop.storage.packed, loop.storage.temporary, loop.backward_rows]
    groups.append(loop.gradients.temporary)
    names = [buffer.name for buffer in itertools.chain(*groups)]
    assert len(names) == len(set(names))
