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

from dynbatch.compiler.cuda.lanes import ColumnRange, KernelGroup, Lane, ScalarOp
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.program import Op, Value, passes_gradient
from dynbatch.kernels.cuda.expressions import BINARY, UNARY, WHERE, UnaryExpression, variant

THREADS = 256


class Kernel:
    """The text of one kernel while it is written.

    Attributes:
        role:   its name within the cell; `name` is its name among all kernels.
        arrays: names of the arrays it takes, in the order of first use.
        lanes:  width and lines of each, which find `row` and column `j`, and s, n and p.
        width:  columns of all lanes together: a row's threads.
    """

    def __init__(self, loop: Loop, role: str) -> None:
        self.loop = loop
        self.role = role
        self.name = role
        self.arrays: list[str] = []
        self.lanes: list[tuple[int, list[str]]] = []
        self._names: dict[tuple[int, int], str] = {}

    @property
    def width(self) -> int:
        return sum([width for width, _ in self.lanes])

    def array(self, name: str) -> str:
        """Use an array."""
        if name not in self.arrays:
            self.arrays.append(name)
        return name

    def text(self) -> str:
        """The whole kernel."""
        pointers = "".join([f"REAL* {name}, " for name in self.arrays])
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
                place = self.loop.places.find(_view(one.output))
                if place is not None:
                    at = _at(place[0].packed, place[0].width, place[1])
                    lines.append(f"{self.array(place[0].name)}[{at}] = {self._name(one.output)};")
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
        if op.kind == "copy":
            return f"const REAL {out} = {names[0]};"
        if op.kind == "scale":
            return f"const REAL {out} = {literal(op.node.number)} * {names[0]};"
        if op.kind == "shift":
            return f"const REAL {out} = {names[0]} + {literal(op.node.number)};"
        if op.kind == "binary":
            code = BINARY[op.node.kernel.name].forward
            return f"REAL {out}; {{ const REAL a = {names[0]}, b = {names[1]}; {out} = {code}; }}"
        if op.kind == "number":
            code, operands = BINARY[op.node.kernel.name].forward, self._with_number(op, names[0])
            return f"REAL {out}; {{ const REAL {operands}; {out} = {code}; }}"
        if op.kind == "where":
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
        """A value from memory."""
        base, first = segment.base, segment.first
        if base.origin == "stream":
            return f"{self.array(f'X{base.place}')}[{_at(True, base.width, first)}]"
        if base.origin == "prev":
            return self._load_state(base, first)
        buffer, column = self.loop.places.place(_view(segment))
        found = f"{self.array(buffer.name)}[{_at(buffer.packed, buffer.width, column)}]"
        op = self.loop.inline_maps.get(id(base))
        if op is None:
            return found
        if self.loop.skips_zeros(op):
            state = self.array(f"I{op.inputs[0].base.place}")
            found = f"(p < 0 && !{state} ? (REAL)0 : {found})"
        if any([piece.biases for piece in op.pieces]):
            found += f" + {self.array(f'b{self.loop.maps[id(op)]}')}[{first} + j]"
        return found

    def _load_state(self, base: Value, first: int) -> str:
        k = base.place
        buffer, column = self.loop.places.place(self.loop.following[k])
        state, initial = self.array(f"S{k}"), self.array(f"I{k}")
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
            given = self._given_gradients(out)
            if given:
                terms = [gradients[out.key]] if out.key in gradients else []
                name = f"o{len(loads) + len(body)}"
                body.append(f"const REAL {name} = {' + '.join([*terms, *given])};")
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
        if op.kind in ("copy", "shift"):
            return f"{{out}} {dy};"
        if op.kind == "scale":
            return f"{{out}} {literal(op.node.number)} * {dy};"
        if op.kind == "unary":
            unary, arguments = self._unary(one)
            reads = op.node.kernel.reads
            saved = {"input": one.inputs[0], "output": one.output}.get(reads)
            held = f", s = {value(saved)}" if saved is not None else ""
            return f"{{{{ const REAL dy = {dy}{held}{arguments}; {{out}} {unary.backward}; }}}}"
        if op.kind == "where":
            code = (WHERE.backward_a, WHERE.backward_b)[position - 1]
            operands = f"dy = {dy}, m = {value(one.inputs[0])}"
            return f"{{{{ const REAL {operands}; {{out}} {code}; }}}}"
        kernel = op.node.kernel
        if op.kind == "number":
            x = value(one.inputs[0]) if op.node.retains.inputs else ""
            code = (BINARY[kernel.name].backward_a, BINARY[kernel.name].backward_b)[op.node.side]
            operands = self._with_number(op, x)
            return f"{{{{ const REAL dy = {dy}, {operands}; {{out}} {code}; }}}}"
        a = f", a = {value(one.inputs[0])}" if kernel.reads_a else ""
        b = f", b = {value(one.inputs[1])}" if kernel.reads_b else ""
        binary = BINARY[kernel.name]
        code = (binary.backward_a, binary.backward_b)[position]
        return f"{{{{ const REAL dy = {dy}{a}{b}; {{out}} {code}; }}}}"

    def _given_gradients(self, segment: ColumnRange) -> list[str]:
        """What reaches a value that this group makes from outside it."""
        loop, found = self.loop, []
        view = _view(segment)
        column = 0
        for export in loop.exports:
            if export.overlaps(view):
                at = _at(True, loop.width, column + segment.first - export.column)
                found.append(f"{self.array('dY')}[{at}]")
            column += export.width
        for k, state in enumerate(loop.following):
            if state.overlaps(view):
                at = _at(False, state.width, segment.first - state.column)
                found.append(f"{self.array(f'C{k}')}[{at}]")
        memory = loop.gradients.get(id(segment.base))
        if memory is not None and memory.covers(segment):
            at = _at(memory.buffer.packed, memory.buffer.width, segment.first)
            found.append(f"{self.array(memory.buffer.name)}[{at}]")
        return found

    def _store_gradient(self, segment: ColumnRange, name: str) -> str:
        memory = self.loop.gradient_of(segment.base)
        sign = "+=" if memory.mode(segment.first, segment.width) else "="
        buffer = memory.buffer
        array = self.array(buffer.name)
        line = f"{array}[{_at(buffer.packed, buffer.width, segment.first)}] {sign} {name};"
        return f"if ({array}) {line}" if segment.base.origin == "stream" else line


def reaches_input(op: Op, position: int) -> bool:
    """Whether a gradient passes from the output to that input."""
    return passes_gradient(op) and not (op.kind == "where" and position == 0)


def literal(number: float) -> str:
    """A number as a REAL."""
    if math.isnan(number):
        return "(infinity() - infinity())"
    if math.isinf(number):
        return "infinity()" if number > 0 else "(-infinity())"
    return f"(REAL){float(number)!r}" if number >= 0 else f"((REAL){float(number)!r})"


def _at(packed: bool, width: int, column: int) -> str:
    row = "((long long)s + row)" if packed else "(long long)row"
    return f"{row} * {width} + {column} + j"


def _view(segment: ColumnRange) -> Value:
    view = Value(segment.width)
    view.base, view.column = segment.base, segment.first
    return view


def _first_uses(lane: Lane, made: set[tuple[int, int]]) -> list[ColumnRange]:
    found: dict[tuple[int, int], ColumnRange] = {}
    for one in lane.ops:
        for x in one.inputs:
            if x.key not in made:
                found.setdefault(x.key, x)
    return list(found.values())
