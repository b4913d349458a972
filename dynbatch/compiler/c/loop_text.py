"""`LoopText`: what the C text of both passes has in common: arrays, states, elementwise groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from textwrap import indent

from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.nest_text import NestText
from dynbatch.compiler.expressions import C
from dynbatch.compiler.groups import items
from dynbatch.compiler.heads import ONE_HEAD, Heads
from dynbatch.compiler.ir import OWN_KERNELS, Op, Origin, Value
from dynbatch.compiler.lanes import Item, KernelGroup, Lane, is_read, names_of
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.nests import NestGroup
from dynbatch.compiler.places import Pointers, place_in
from dynbatch.compiler.program import numbered

# Rows outside of the loop and the arrays that they lie in: streams, outputs, gradients of outputs.
# Where these are given, the loop itself brings rows in and out of its order.
ORDER, OUTPUTS, OUTPUT_GRADIENTS = "order", "ys", "dys"


IN_16_BITS = 2
"""The argument `given` where the state before is what an earlier chunk left, in 16 bits."""

STATE = "const char*"
LOADS = {
    "const REAL*": "get({} + j, m)", "const KEPT*": "get_kept({} + j, m)",
    STATE: "get_state({}, j, m, found)",
}  # fmt: skip
"""The vector of a lane by the type of its pointer."""


def rows_of_stream(number: int) -> str:
    return f"xs{number}"


class LoopText:
    """One function of C, which runs the steps of a pass.

    Attributes:
        slots:   names of the arrays that it gets, in order.
        left:    those of forward that may lie in 16 bits.
        outside: names of the streams' rows outside of the loop.
        between: operators with kernels of their own: then it runs one part of a step, before the
                 first of them, between two, or behind the last.

    Args:
        name:     of the function.
        storages: of the pass; that of forward is the last.
        ops:      of a step.
        kept:     values that are read after it.
        attends:  whether it calls the operators with kernels of their own too.
        left:     arrays of forward that may lie in 16 bits.
    """

    def __init__(
        self, name: str, program: LoopProgram, storages: Sequence[Storage], ops: Sequence[Op],
        kept: Sequence[Value], attends: bool = False, left: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.left = left
        self.between: list[Op] = []
        self.maps = numbered(program.linear_maps)
        self.places = self._places(storages)
        self._heads: Heads = ONE_HEAD
        self._program = program
        self._storages = storages
        self._generic = numbered(program.generic)
        self._attends = attends
        self._name = name
        self._kept = kept
        self._following = storages[-1].left_by_step(program)
        self._ops = ops
        self._lanes: list[str] = []
        self._streams = program.streams
        self.outside = [rows_of_stream(k) for k in range(len(program.streams))]
        buffers = [b for each in storages for b in (*each.packed, *each.temporary)]
        self.slots = [*[f"X{k}" for k in range(len(program.streams))], *[b.name for b in buffers]]
        self.slots += [f"I{k}" for k in range(len(program.states))]
        self.slots += [*[f"G{k}" for k in self._generic.values()], ORDER, *self.outside]

    def _places(self, storages: Sequence[Storage]) -> Pointers:
        return Pointers(*storages)

    def items(self) -> list[Item | NestGroup]:
        """The items of a step."""
        return items(self._ops, self.places, self._is_kept)

    def products(self, op: Op) -> list[str]:
        """The lines of an operator that is not elementwise."""
        raise NotImplementedError

    def print(self, each: str, first: Sequence[str], last: Sequence[str]) -> str:
        """The source of the function, and of those that it calls.

        Args:
            each:        the head of the loop over steps t.
            first, last: lines that begin and end a step.
        """
        parts = self._parts(self.items())
        body = [*self._states(), "if (part == 0) {", *first, *parts, *last, "}"]
        lines = [
            f"EXPORT void {self._name}(ptrdiff_t count, const int64_t* steps, int given,",
            "    int ahead, int part, const int64_t* at, const void* panel_product) {",
            "    product_function* const product = (product_function*)panel_product;",
            "    ptrdiff_t done = count ? steps[0] : 0;",
            *[f"    {line}" for line in self._arrays()],
            f"    {each} {{",
            *[f"        {line}" for line in self._step()],
            indent("\n".join(body), " " * 8),
            "    }",
            "}",
        ]
        return "\n".join([*self._lanes, *lines, ""])

    def _parts(self, found: Sequence[Item | NestGroup]) -> list[str]:
        """The lines of a step's parts, of which another begins behind each own kernel."""
        lines: list[str] = []
        for item in found:
            if isinstance(item, NestGroup):
                lines += self._nest(item)
            elif isinstance(item, KernelGroup):
                lines += [line for lane in item.lanes for line in self._lane(lane, item.ops)]
            elif item.opcode in OWN_KERNELS and not self._attends:
                self.between.append(item)
                lines += ["}", f"if (part == {len(self.between)}) {{"]
            else:
                lines += self.products(item)
        return lines

    def step_of(self, op: Op, *values: Value) -> list[str]:
        """The call of an operator's own function, with the places of some values."""
        name = f"G{self._generic[id(op)]}"
        places = [self.places.of(value) for value in values]
        arguments = ", ".join([f"{columns.pointer}, {columns.stride}" for columns in places])
        function = f"(({self._name}_step*){name})"
        return [f"{function}((const void*){name}_step, t, n, {arguments});"]

    def gather_streams(self, rows: str) -> list[str]:
        """Bring so many rows of the streams, from `s` on, into the loop's order."""
        return [
            self.gather(rows, f"X{k}", name, x.width)
            for k, (name, x) in enumerate(zip(self.outside, self._streams, strict=True))
        ]

    def gather(self, rows: str, name: str, source: str, width: int) -> str:
        """Bring rows from outside of the loop, if they are given."""
        into = f"{name} + s * {width}"
        return (
            f"if ({source}) take_rows({rows}, {width}, {source}, {source}_step, order + s, {into});"
        )

    def _arrays(self) -> list[str]:
        lines = []
        for number, name in enumerate(self.slots):
            kind = "int64_t" if name == ORDER else "KEPT" if name in self.left else "REAL"
            lines.append(f"{kind}* const {name} = ({kind}*)(intptr_t)at[{2 * number}];")
            lines.append(f"const ptrdiff_t {name}_step = at[{2 * number + 1}];")
        return lines

    def _step(self) -> list[str]:
        """The rows of a step."""
        return [
            "const int64_t* step = steps + 4 * t;",
            "const ptrdiff_t s = step[0], n = step[2], p = step[3];",
            "const int zero = p < 0 && !given;",
            *[f"const int found = p >= 0 || given == {IN_16_BITS};"] * bool(self.left),
        ]

    def _states(self) -> list[str]:
        lines = []
        for k, columns in enumerate(self._following):
            pointer, stride, kind = f"I{k}", f"I{k}_step", "REAL"
            if columns is not None:
                left, after = place_in(*columns, "p"), ""
                if self.is_left(k):
                    kind, after = "char", "(const char*)"
                stride = f"p < 0 ? {stride} : {left.stride}"
                pointer = f"p < 0 ? {after}{pointer} : {after}({left.pointer})"
            lines.append(f"const {kind}* const h{k} = {pointer};")
            lines.append(f"const ptrdiff_t h{k}_row = {stride};")
        return lines

    def _is_kept(self, segment: Value, group: Sequence[Op]) -> bool:
        return is_read(segment, self._ops, group, self._kept)

    def _nest(self, nest: NestGroup) -> list[str]:
        """The loops of a nest; prints the function of one vector of it too."""
        name = f"{self._name}_nest_{len(self._lanes)}"
        group = self._heads.group(nest)
        text = NestText(group, name, self.places.of, self._is_kept, self._heads)
        if not text.writes:
            return []
        self._lanes.append(text.function)
        return text.lines

    def _kind(self, segment: Value) -> str:
        """The type of the numbers that a lane reads: char of a state that may be in either form."""
        base = segment.base
        if base.origin is not Origin.STATE:
            return "KEPT" if self.places.of(segment).array in self.left else "REAL"
        return "char" if self.is_left(base.number) else "REAL"

    def is_left(self, state: int) -> bool:
        """Whether what a step leaves of a part of the state may lie in 16 bits."""
        columns = self._following[state]
        return columns is not None and columns.buffer.name in self.left

    def _lane(self, lane: Lane, ops: Sequence[Op]) -> list[str]:
        """The loop over the rows of a lane; prints the function of one vector of it too."""
        names = names_of(lane, lambda segment: self._is_kept(segment, ops))
        if not names.stores:  # nothing reads what it makes
            return []
        function = f"{self._name}_lane_{len(self._lanes)}"
        pointers = [(f"const {self._kind(x)}*", f"x{k}", x) for k, (_, x) in enumerate(names.loads)]
        loads = [LOADS[kind].format(name) for kind, name, _ in pointers]
        flag = "found, " if STATE in [kind for kind, _, _ in pointers] else ""
        pointers += [("REAL*", f"y{k}", y) for k, (_, y) in enumerate(names.stores)]
        parameters = ", ".join([f"{kind} {name}" for kind, name, _ in pointers])
        of_state = f"int {flag}" if flag else ""
        head = f"INLINE void {function}(ptrdiff_t j, ptrdiff_t m, {of_state}{parameters}) {{"
        body = [
            f"const vector {v} = {load};" for (v, _), load in zip(names.loads, loads, strict=True)
        ]
        for v, scalar, operands in names.makes:
            body.append(f"const vector {v} = {C.expression(scalar.op, operands)};")
        body += [f"put(y{k} + j, {v}, m);" for k, (v, _) in enumerate(names.stores)]
        self._lanes.append("\n".join([head, *[f"    {line}" for line in body], "}", ""]))
        lines, width = ["for (ptrdiff_t i = 0; i < n; i++) {"], lane.width // self._heads.count
        for kind, name, segment in pointers:
            columns, of_head = self.places.of(segment), self._heads.offset(segment.base, width)
            row = f"{columns.pointer}{of_head} + i * {columns.stride}"
            if kind == STATE:
                row = f"ROW_OF_STATE({columns.array}, {columns.column} + i * {columns.stride})"
            lines.append(f"    {kind} {name} = {row};")
        arguments = flag + ", ".join([name for _, name, _ in pointers])
        return [
            *lines,
            "    ptrdiff_t j = 0;",
            f"    for (; j + LANES <= {width}; j += LANES) {function}(j, LANES, {arguments});",
            f"    if ({width} % LANES) {function}(j, {width} % LANES, {arguments});",
            "}",
        ]
