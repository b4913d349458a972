"""Prints each group of a loop as two CUDA kernels: its operators, and their gradients.

Arrays by name, row by row; in a step row r of a packed array is row s + r, of the others row r:

    X0 …  streams, packed            dX0 …  their gradients
    P0 …  packed values              T0 …   temporary values
    I0 …  initial states, or NULL    S0 …   states as steps left them, packed
    b0 …  biases of linear maps      dY     gradient of the exports, packed
    C0 …  gradient of the state that this step left; N0 … of the state that it found
    D0 …  gradients of values that cross kernels: packed for linear maps, else temporary

`steps` has three numbers a step: its first packed row s, its running sentences n, and the first
packed row p of the step before, or -1. A thread works on one row and one column of one lane.
"""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.compiler.buffers import ProgramBuffer, Role, array_name
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.scalars import forward_statement, gradient_statement, reaches_input
from dynbatch.compiler.ir import Origin, Value
from dynbatch.compiler.lanes import ColumnRange, KernelGroup, Lane

THREADS = 256


class KernelArray(NamedTuple):
    """An array that a kernel takes."""

    role: Role
    label: int | str

    @property
    def name(self) -> str:
        return array_name(self.role, self.label)


class Kernel:
    """The text of one kernel while it is written.

    Attributes:
        stem:   its name within the cell; `name` is its name among all kernels.
        arrays: what it takes, in the order of first use.
        lanes:  width and lines of each, which find `row` and column `j`, and s, n and p.
        width:  columns of all lanes together: a row's threads.
    """

    def __init__(self, loop: Loop, stem: str) -> None:
        self.loop = loop
        self.stem = stem
        self.name = stem
        self.arrays: list[KernelArray] = []
        self.lanes: list[tuple[int, list[str]]] = []
        self._names: dict[tuple[int, int], str] = {}

    @property
    def width(self) -> int:
        return sum([width for width, _ in self.lanes])

    def array(self, role: Role, label: int | str = "") -> str:
        """The name of an array, which becomes an argument of the kernel."""
        array = KernelArray(role, label)
        if array not in self.arrays:
            self.arrays.append(array)
        return array.name

    def element(self, buffer: ProgramBuffer, column: int) -> str:
        """The element of a buffer at this row, and j columns after `column`."""
        at = element_offset(buffer.packed, buffer.width, column)
        return f"{self.array(buffer.role, buffer.label)}[{at}]"

    def text(self) -> str:
        """The whole kernel."""
        pointers = "".join([f"REAL* {array.name}, " for array in self.arrays])
        lines = [
            f'extern "C" __global__ void {self.name}({pointers}const int* steps, int t) {{',
            "    const int s = steps[3 * t], n = steps[3 * t + 1], p = steps[3 * t + 2];",
            "    long long thread = thread_in_grid();",
        ]
        for width, body in self.lanes:
            lines += [
                f"    if (thread >= 0 && thread < (long long)n * {width}) {{",
                f"        const int row = (int)(thread / {width}), j = (int)(thread % {width});",
                *[f"        {line}" for line in body],
                "    }",
                f"    thread -= (long long)n * {width};",
            ]
        return "\n".join([*lines, "}"])

    def forward(self, group: KernelGroup) -> None:
        """Every lane's operators, in order."""
        for lane in group.lanes:
            self._names = {}
            made = {scalar.output.key for scalar in lane.ops}
            read = _first_uses(lane, made)
            lines = [f"const REAL {self._name(x)} = {self._load(x)};" for x in read]
            lines += [
                forward_statement(
                    scalar.op, self._name(scalar.output), [*map(self._name, scalar.inputs)]
                )
                for scalar in lane.ops
            ]
            for scalar in lane.ops:
                memory = self.loop.storage.find(_view(scalar.output))
                if memory is not None:
                    lines.append(f"{self.element(*memory)} = {self._name(scalar.output)};")
            self.lanes.append((lane.width, lines))

    def backward(self, group: KernelGroup) -> None:
        """Every lane's gradients, in reverse."""
        for lane in group.lanes:
            self._names = {}
            lines = self._backward_lane(lane)
            if lines:
                self.lanes.append((lane.width, lines))

    # Forward --------------------------------------------------------------------------------------

    def _name(self, segment: ColumnRange) -> str:
        return self._names.setdefault(segment.key, f"v{len(self._names)}")

    def _load(self, segment: ColumnRange) -> str:
        """The expression for a value in memory."""
        base, first = segment.base, segment.first
        if base.origin is Origin.STREAM:
            stream = ProgramBuffer(Role.STREAM, base.number, base.width, packed=True)
            return self.element(stream, first)
        if base.origin is Origin.STATE:
            return self._load_state(base, first)
        value = self.element(*self.loop.storage.buffer_of(_view(segment)))
        op = self.loop.inline_maps.get(id(base))
        if op is None:
            return value
        if self.loop.skips_zeros(op):
            state = self.array(Role.INITIAL_STATE, op.inputs[0].base.number)
            value = f"(p < 0 && !{state} ? (REAL)0 : {value})"
        if op.has_bias:
            value += f" + {self.array(Role.BIAS, self.loop.maps[id(op)])}[{first} + j]"
        return value

    def _load_state(self, base: Value, first: int) -> str:
        k = base.number
        buffer, column = self.loop.storage.buffer_of(self.loop.following[k])
        state, initial = self.array(Role.LEFT_STATES, k), self.array(Role.INITIAL_STATE, k)
        before = f"{state}[((long long)p + row) * {buffer.width} + {column + first} + j]"
        given = f"{initial}[(long long)row * {base.width} + {first} + j]"
        return f"p >= 0 ? {before} : {initial} ? {given} : (REAL)0"

    # Backward -------------------------------------------------------------------------------------

    def _backward_lane(self, lane: Lane) -> list[str]:
        made = {scalar.output.key for scalar in lane.ops}
        values: dict[tuple[int, int], str] = {}
        loads: list[str] = []
        body: list[str] = []
        gradients: dict[tuple[int, int], str] = {}
        segments: dict[tuple[int, int], ColumnRange] = {}

        def value(segment: ColumnRange) -> str:
            if segment.key not in values:
                values[segment.key] = f"v{len(values)}"
                loads.append(f"const REAL {values[segment.key]} = {self._load(segment)};")
            return values[segment.key]

        for scalar in reversed(lane.ops):
            out = scalar.output
            outer = self._outer_gradients(out)
            if outer:
                terms = [gradients[out.key]] if out.key in gradients else []
                name = f"o{len(loads) + len(body)}"
                body.append(f"const REAL {name} = {' + '.join([*terms, *outer])};")
                gradients[out.key] = name
            dy = gradients.get(out.key)
            if dy is None:
                continue
            for position, x in enumerate(scalar.inputs):
                if self.loop.is_shared(x.base) or not reaches_input(scalar.op, position):
                    continue
                code = gradient_statement(scalar, position, dy, value)
                segments[x.key] = x
                known = gradients.get(x.key)
                if known is None:
                    gradients[x.key] = known = f"g{len(gradients)}_{len(body)}"
                    body.append(f"REAL {known}; {code.format(out=f'{known} =')}")
                else:
                    body.append(code.format(out=f"{known} +="))
        stores = [
            self._store_gradient(segment, gradients[key])
            for key, segment in segments.items()
            if key not in made
        ]
        return [*loads, *body, *stores] if stores else []

    def _outer_gradients(self, segment: ColumnRange) -> list[str]:
        """The gradients that reach a value of this group from outside."""
        loop, terms = self.loop, []
        view = _view(segment)
        column = 0
        for export in loop.exports:
            if export.overlaps(view):
                buffer = ProgramBuffer(Role.EXPORT_GRADIENT, "", loop.width, packed=True)
                terms.append(self.element(buffer, column + segment.first - export.column))
            column += export.width
        for k, state in enumerate(loop.following):
            if state.overlaps(view):
                buffer = ProgramBuffer(Role.LEFT_GRADIENT, k, state.width, packed=False)
                terms.append(self.element(buffer, segment.first - state.column))
        memory = loop.gradients.get(id(segment.base))
        if memory is not None and memory.covers(segment):
            terms.append(self.element(memory.buffer, segment.first))
        return terms

    def _store_gradient(self, segment: ColumnRange, name: str) -> str:
        memory = self.loop.gradient_of(segment.base)
        sign = "+=" if memory.mode(segment.first, segment.width) else "="
        line = f"{self.element(memory.buffer, segment.first)} {sign} {name};"
        is_stream = segment.base.origin is Origin.STREAM
        return f"if ({memory.buffer.name}) {line}" if is_stream else line


def element_offset(packed: bool, width: int, column: int) -> str:
    row = "((long long)s + row)" if packed else "(long long)row"
    return f"{row} * {width} + {column} + j"


def _view(segment: ColumnRange) -> Value:
    return Value.columns(segment.base, segment.first, segment.width)


def _first_uses(lane: Lane, made: set[tuple[int, int]]) -> list[ColumnRange]:
    uses = {x.key: x for scalar in lane.ops for x in scalar.inputs if x.key not in made}
    return list(uses.values())
