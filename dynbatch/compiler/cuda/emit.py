"""Prints each group of a loop as a CUDA kernel.

Arrays by name, as `buffers.Role` has them; in a step row r of a packed array is row s + r, of
the others row r. I0 … are NULL for a state that is zeros, dX0 … for gradients that nobody wants.

`steps` has three numbers a step: its first packed row s, its running sentences n, and the first
packed row p of the step before, or -1. Where several runs go side by side, a block belongs to run
`blockIdx.y`; `runs` has for each but the first how many elements its arrays are from the first's. A
thread works on one row and one column of one lane: it loads all that it reads before it stores
anything, since values share memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dynbatch.compiler.buffers import ProgramBuffer, Role, array_name
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.expressions import CUDA
from dynbatch.compiler.ir import OpCode, Origin, Value
from dynbatch.compiler.lanes import KernelGroup, Lane, LaneNames, loaded, names_of

STEP = "const long long s = steps[3 * t], n = steps[3 * t + 1], p = steps[3 * t + 2];"


NAME = re.compile(r"\b\w+\b")


class Arrays:
    """The arrays that a kernel takes, while its lines are written.

    Attributes:
        names: in the order of first use.
    """

    def __init__(self, loop: Loop) -> None:
        self.names: list[str] = []
        self._loop = loop

    def name(self, role: Role, label: int | str = "") -> str:
        """The name of an array, which becomes an argument of the kernel."""
        return self.take(array_name(role, label))

    def take(self, name: str) -> str:
        """An array that another kernel takes too."""
        if name not in self.names:
            self.names.append(name)
        return name

    def parameters(self, names: Sequence[str] | None = None) -> str:
        """The parameters of a kernel for the arrays, of the first of several runs.

        Args:
            names: for them, if not their own.
        """
        pointers = "".join([f"REAL* {name}, " for name in names or self.names])
        return f"{pointers}const long long* runs, "

    def of_run(self) -> list[str]:
        """Lines that make them those of the run that a block belongs to."""
        moves = [f"{name} += away[{k}];" for k, name in enumerate(self.names)]
        away = f"const long long* away = runs + (blockIdx.y - 1) * {len(self.names)};"
        return ["    if (blockIdx.y) {", *[f"        {line}" for line in (away, *moves)], "    }"]

    def in_shared(self, lines: Sequence[str], names: Sequence[str] | None = None) -> list[str]:
        """Lines with the arrays of a block's run, whose addresses lie in shared memory.

        There they take no registers, of which pointers that are not parameters would.
        """
        places = {name: f"arrays[{k}]" for k, name in enumerate(names or self.names)}
        away = f"runs[(blockIdx.y - 1) * {len(places)} + "
        sets = [f"{pointer} = {name} + (blockIdx.y ? {away}{k}] : 0);"
                for k, (name, pointer) in enumerate(places.items())]  # fmt: skip
        head = [f"__shared__ REAL* arrays[{len(places)}];", "if (threadIdx.x == 0) {"]
        used = [NAME.sub(lambda word: places.get(word[0], word[0]), line) for line in lines]
        return [*head, *[f"    {line}" for line in sets], "}", "__syncthreads();", *used]

    def state(self, value: Value, index: str = "") -> str:
        """The address of columns of a state in this row, or an element; NULL or 0 for zeros."""
        k, zero = value.base.number, "(REAL)0" if index else "nullptr"
        initial = ProgramBuffer(Role.INITIAL_STATE, k, value.base.width, packed=False)
        initial_element = self._at(initial, value.column, "row")
        element = f"{initial.name} ? ({initial_element}){index} : {zero}"
        columns = self._loop.storage.left_by_step(self._loop.program)[k]
        if columns is not None:
            left = self._at(columns.buffer, columns.column + value.column, "(p + row)")
            element = f"p >= 0 ? ({left}){index} : {element}"
        return f"({element})"

    def address(self, value: Value) -> str:
        """The address of a value's first column in this row."""
        if value.base.origin is Origin.STATE:
            return self.state(value)
        buffer, first = self._loop.places.buffer_of(value.base)
        row = "(s + row)" if buffer.packed else "row"
        return f"({self._at(buffer, first + value.column, row)})"

    def _at(self, buffer: ProgramBuffer, column: int, row: str) -> str:
        name = self.name(buffer.role, buffer.label)
        return f"{name} + {row} * {buffer.width} + {column}"


class Kernel:
    """The text of one kernel.

    Attributes:
        name:   of the kernel within its cell.
        arrays: what it takes.
        lanes:  width and lines of each, which find `row` and column `j`, and s, n and p.
        stores: names of the arrays that it writes.
        block:  threads of a block.
    """

    block = 256

    def __init__(self, loop: Loop, name: str, step: DevicePass, number: int) -> None:
        self.loop = loop
        self.name = name
        self.arrays = Arrays(loop)
        self.lanes: list[tuple[int, list[str]]] = []
        self.stores: set[str] = set()
        item = step.items[number]
        for lane in item.lanes if isinstance(item, KernelGroup) else ():
            names = names_of(lane, lambda x: step.leaves(x, number))
            stores = [(name, x) for name, x in names.stores if not self._is_there(lane, x)]
            if stores:
                self._add_lane(lane, names._replace(stores=stores))

    def _add_lane(self, lane: Lane, names: LaneNames) -> None:
        self.lanes.append((lane.width, self._lines(names)))

    def grid(self, rows: int) -> int:
        return -(-rows * sum([width for width, _ in self.lanes]) // self.block)

    def text(self, prefix: str) -> str:
        """The whole kernel; its name follows the prefix."""
        lines = [
            f'extern "C" __global__ void {prefix}_{self.name}'
            f"({self.arrays.parameters()}const int* steps, int t) {{",
            *self.arrays.of_run(),
            f"    {STEP}",
            "    long long thread = thread_in_grid();",
        ]
        for width, body in self.lanes:
            lines += [
                f"    if (thread >= 0 && thread < n * {width}) {{",
                f"        const long long row = thread / {width};",
                f"        const int j = (int)(thread % {width});",
                *[f"        {line}" for line in body],
                "    }",
                f"    thread -= n * {width};",
            ]
        return "\n".join([*lines, "}"])

    def _lines(self, names: LaneNames) -> list[str]:
        lines = [f"const REAL {name} = {self._load(x)};" for name, x in names.loads]
        for name, scalar, xs in names.makes:
            lines.append(f"const REAL {name} = {CUDA.expression(scalar.op, xs)};")
        return [*lines, *[self._store(name, x) for name, x in names.stores]]

    def _load(self, segment: Value) -> str:
        if segment.base.origin is Origin.STATE:
            return self.arrays.state(segment, "[j]")
        value = f"{self.arrays.address(segment)}[j]"
        op = self.loop.inline_maps.get(id(segment.base))
        if op is None:
            return value
        if self.loop.skips_zeros(op):
            state = self.arrays.name(Role.INITIAL_STATE, op.inputs[0].base.number)
            value = f"(p < 0 && !{state} ? (REAL)0 : {value})"
        if op.has_bias:
            value += (
                f" + {self.arrays.name(Role.BIAS, self.loop.maps[id(op)])}[{segment.column} + j]"
            )
        return value

    def _store(self, name: str, segment: Value) -> str:
        buffer, _ = self.loop.places.buffer_of(segment.base)
        self.stores.add(buffer.name)
        line = f"{self.arrays.address(segment)}[j] = {name};"
        return f"if ({buffer.name}) {line}" if buffer.role is Role.STREAM_GRADIENT else line

    def _is_there(self, lane: Lane, segment: Value) -> bool:
        (scalar,) = [scalar for scalar in lane.ops if scalar.output.key == segment.key]
        if scalar.op.opcode is not OpCode.COPY or not loaded(lane, scalar.inputs):
            return False
        (source,) = scalar.inputs
        is_whole = id(source.base) not in self.loop.inline_maps  # else a bias is missing there
        return is_whole and self.loop.places.of(source) == self.loop.places.of(segment)
