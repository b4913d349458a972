"""Values on a GPU share memory only where no thread needs what another overwrites."""

import pytest

from dynbatch.compiler.buffers import Role, read_after
from dynbatch.compiler.ir import OpCode, Origin
from dynbatch.compiler.lanes import KernelGroup, names_of
from tests.cells.cell_cases import CASES, H
from tests.compiler.test_differentiate import compiled

NAMES = [name for name, case in CASES.items() if not case.memories]


class Memory:
    """The column of a value that lies in each column of each buffer."""

    def __init__(self, places):
        self._places = places
        self._held = {}

    def columns(self, segment):
        """The columns of memory that hold a segment, and the columns of its value."""
        buffer, first = self._places.buffer_of(segment.base)
        held = range(segment.column, segment.column + segment.width)
        return [((buffer.name, first + at), (id(segment.base), at)) for at in held]

    def store(self, segment):
        self._held.update(self.columns(segment))

    def check(self, segment):
        for place, value in self.columns(segment):
            assert self._held.get(place, value) == value


def accesses(step, number):
    """Loads and stores of each of an item's lanes, or of the operator."""
    item = step.items[number]
    if not isinstance(item, KernelGroup):
        return [(item.inputs, item.outputs)]
    found = []
    for lane in item.lanes:
        names = names_of(lane, lambda x: step.leaves(x, number))
        found.append(([x for _, x in names.loads], [x for _, x in names.stores]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_values_in_one_place_are_never_needed_at_once(name):
    """Each value must still be there when it is read, whatever was made in its columns since."""
    loop = compiled(name).on_device.loop
    memory = Memory(loop.places)
    for step in (loop.forward, loop.backward):
        for op in step.ahead:
            memory.store(op.output)
        for number in range(len(step.items)):
            lanes = accesses(step, number)
            for loads, _ in lanes:
                for x in loads:
                    if x.base.origin not in (Origin.STATE, Origin.STREAM):
                        memory.check(x)
            for _, stores in lanes:
                for x in stores:
                    memory.store(x)
        for value in [*step.kept, *read_after(loop.program, loop.backward_program)]:
            if value.base.origin is Origin.OPERATOR:
                memory.check(value)


def places(memory, segments):
    """The columns of memory of each segment that is no state, which lies in rows of its own."""
    made = [x for x in segments if x.base.origin is not Origin.STATE]
    return [frozenset(place for place, _ in memory.columns(x)) for x in made]


@pytest.mark.parametrize("name", NAMES)
def test_no_thread_stores_where_another_loads_or_stores(name):
    """A lane may store where it has loaded; a product only over the operand that it is added to."""
    loop = compiled(name).on_device.loop
    memory = Memory(loop.places)
    for step in (loop.forward, loop.backward):
        for number, item in enumerate(step.items):
            lanes = accesses(step, number)
            for k, (loads, stores) in enumerate(lanes):
                others = [
                    x for at, each in enumerate(lanes) if at != k for part in each for x in part
                ]
                if isinstance(item, KernelGroup):
                    own = places(memory, loads)
                else:
                    others += item.inputs[:1] if is_product(item) else item.inputs
                    own = places(memory, loads[1:] if is_product(item) else [])
                for stored in places(memory, stores):
                    assert not any(stored & other for other in places(memory, others))
                    assert all(stored == each or not stored & each for each in own)


def is_product(op):
    """Whether an operator may be added to its second operand."""
    return op.opcode is OpCode.LINEAR_GRADIENT


def test_gradients_of_gates_take_the_place_of_the_gates():
    cell = compiled("lstm")
    loop = cell.on_device.loop
    buffer, column = loop.gradients.buffer_of(cell.backward_program.of_maps[0])
    assert (buffer.role, buffer.width, column) == (Role.PACKED, 4 * H, 0)
    assert not loop.gradients.packed and not loop.gradients.temporary
