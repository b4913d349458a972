"""Writes each group of a loop as two CUDA kernels: its operators forward, and their gradients.

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

import math
from collections.abc import Callable
from typing import NamedTuple

from dynbatch.compiler.buffers import ProgramBuffer, Role, array_name
from dynbatch.compiler.cuda.lanes import ColumnRange, KernelGroup, Lane, ScalarOp
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.kernels.binary import WHERE
from dynbatch.kernels.cuda.expressions import BINARY, UNARY, UnaryExpression, variant

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
        """The name of an array, which the kernel takes from now on."""
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
            made = {one.output.key for one in lane.ops}
            read = _first_uses(lane, made)
            lines = [f"const REAL {self._name(x)} = {self._load(x)};" for x in read]
            lines += [self._operator(one) for one in lane.ops]
            for one in lane.ops:
                found = self.loop.storage.find(_view(one.output))
                if found is not None:
                    lines.append(f"{self.element(*found)} = {self._name(one.output)};")
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

    def _operator(self, one: ScalarOp) -> str:
        out = self._name(one.output)
        names = [self._name(x) for x in one.inputs]
        op = one.op
        if op.opcode is OpCode.COPY:
            return f"const REAL {out} = {names[0]};"
        if op.opcode is OpCode.SCALE:
            return f"const REAL {out} = {literal(op.node.number)} * {names[0]};"
        if op.opcode is OpCode.SHIFT:
            return f"const REAL {out} = {names[0]} + {literal(op.node.number)};"
        if op.opcode is OpCode.BINARY:
            code = BINARY[op.node.kernel.name].forward
            return f"REAL {out}; {{ const REAL a = {names[0]}, b = {names[1]}; {out} = {code}; }}"
        if op.opcode is OpCode.WITH_NUMBER:
            code, operands = BINARY[op.node.kernel.name].forward, self._with_number(op, names[0])
            return f"REAL {out}; {{ const REAL {operands}; {out} = {code}; }}"
        if op.opcode is OpCode.WHERE:
            operands = f"m = {names[0]}, a = {names[1]}, b = {names[2]}"
            return f"REAL {out}; {{ const REAL {operands}; {out} = {WHERE.forward}; }}"
        unary, arguments = self._unary(one)
        return f"REAL {out}; {{ const REAL x = {names[0]}{arguments}; {out} = {unary.forward}; }}"

    def _with_number(self, op: Op, x: str) -> str:
        """The operands of a function of a value and a number; without the value if x is empty."""
        own, other = "ba" if op.node.side else "ab"
        value = f"{own} = {x}, " if x else ""
        return f"{value}{other} = {literal(op.node.number)}"

    def _unary(self, one: ScalarOp) -> tuple[UnaryExpression, str]:
        node = one.op.node
        key, numbers = variant(node.kernel.name, node.arguments())
        arguments = "".join([f", a{k} = {literal(v)}" for k, v in enumerate(numbers)])
        return UNARY[key], arguments

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
        made = {one.output.key for one in lane.ops}
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

        for one in reversed(lane.ops):
            out = one.output
            outer = self._outer_gradients(out)
            if outer:
                terms = [gradients[out.key]] if out.key in gradients else []
                name = f"o{len(loads) + len(body)}"
                body.append(f"const REAL {name} = {' + '.join([*terms, *outer])};")
                gradients[out.key] = name
            dy = gradients.get(out.key)
            if dy is None:
                continue
            for position, x in enumerate(one.inputs):
                if self.loop.is_shared(x.base) or not reaches_input(one.op, position):
                    continue
                code = self._gradient(one, position, dy, value)
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

    def _gradient(
        self, one: ScalarOp, position: int, dy: str, value: Callable[[ColumnRange], str]
    ) -> str:
        """A statement that puts the gradient of one input after `{out}`."""
        op = one.op
        if op.opcode in (OpCode.COPY, OpCode.SHIFT):
            return f"{{out}} {dy};"
        if op.opcode is OpCode.SCALE:
            return f"{{out}} {literal(op.node.number)} * {dy};"
        if op.opcode is OpCode.UNARY:
            unary, arguments = self._unary(one)
            reads = op.node.kernel.reads
            saved = {"input": one.inputs[0], "output": one.output}.get(reads)
            held = f", s = {value(saved)}" if saved is not None else ""
            return f"{{{{ const REAL dy = {dy}{held}{arguments}; {{out}} {unary.backward}; }}}}"
        if op.opcode is OpCode.WHERE:
            code = (WHERE.backward_a, WHERE.backward_b)[position - 1]
            operands = f"dy = {dy}, m = {value(one.inputs[0])}"
            return f"{{{{ const REAL {operands}; {{out}} {code}; }}}}"
        kernel = op.node.kernel
        if op.opcode is OpCode.WITH_NUMBER:
            x = value(one.inputs[0]) if op.node.retains.inputs else ""
            code = (BINARY[kernel.name].backward_a, BINARY[kernel.name].backward_b)[op.node.side]
            operands = self._with_number(op, x)
            return f"{{{{ const REAL dy = {dy}, {operands}; {{out}} {code}; }}}}"
        a = f", a = {value(one.inputs[0])}" if kernel.reads_a else ""
        b = f", b = {value(one.inputs[1])}" if kernel.reads_b else ""
        binary = BINARY[kernel.name]
        code = (binary.backward_a, binary.backward_b)[position]
        return f"{{{{ const REAL dy = {dy}{a}{b}; {{out}} {code}; }}}}"

    def _outer_gradients(self, segment: ColumnRange) -> list[str]:
        """What reaches a value that this group makes from outside it."""
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


def reaches_input(op: Op, position: int) -> bool:
    """Whether a gradient passes from the output to that input."""
    return op.passes_gradient and not (op.opcode is OpCode.WHERE and position == 0)


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(infinity() - infinity())"
    if math.isinf(number):
        return "infinity()" if number > 0 else "(-infinity())"
    return f"(REAL){float(number)!r}" if number >= 0 else f"((REAL){float(number)!r})"


def element_offset(packed: bool, width: int, column: int) -> str:
    row = "((long long)s + row)" if packed else "(long long)row"
    return f"{row} * {width} + {column} + j"


def _view(segment: ColumnRange) -> Value:
    return Value.columns(segment.base, segment.first, segment.width)


def _first_uses(lane: Lane, made: set[tuple[int, int]]) -> list[ColumnRange]:
    uses = {x.key: x for one in lane.ops for x in one.inputs if x.key not in made}
    return list(uses.values())
