"""Prints a program's backward pass: steps in reverse, and in each step operators in reverse.

What needs no gradient (see `derivatives`) is made for a block of steps at once, ahead of them.
Arrays by name, besides those of forward:

    dY         gradients of the exports, packed
    C0 …       gradients of the state parts, carried from step to step
    D0 …       gradients of values, packed where a weight gradient needs all steps at once; before
               they are made, the factor that makes them may wait in the same place
    F0 …       factors with an array of their own
    H0 …       state parts as every step found them, packed
    dX0 …      gradients of streams that the loop reads directly
    E, Z, S …  scratch
    V0 …       weights (O, K)
"""

from __future__ import annotations

from dynbatch.compiler.buffers import ProgramBuffer, Role, Storage, backward_reads
from dynbatch.compiler.derivatives import Link, has_slope, links
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.elementwise import gradient_codes, kernel_name
from dynbatch.compiler.numpy.forward import AFTER_ZEROS, argument
from dynbatch.compiler.numpy.gradient_lines import GradientLines
from dynbatch.compiler.numpy.views import Code, Views, common_plane, copy_of, with_used
from dynbatch.compiler.program import numbered


class AheadViews(Views):
    """Views over all rows of a block of steps, where states are packed."""

    def buffer_of(self, value: Value) -> tuple[ProgramBuffer, int]:
        base = value.base
        if base.origin is Origin.STATE:
            states = ProgramBuffer(Role.FOUND_STATES, base.number, base.width, packed=True)
            return states, value.column
        return super().buffer_of(value)


class Backward(GradientLines):
    """All lines of a backward pass: operator after operator in reverse, then the state.

    Attributes:
        ahead:    lines for each block of steps, before them.
        carry:    lines that end a step: the state's gradient for the step before.
        of_maps:  the buffer that holds the gradient of each wide linear map's output.
        previous: state parts that are read packed, ahead of a block.
    """

    def __init__(self, program: LoopProgram, storage: Storage) -> None:
        super().__init__(program, storage)
        self.ahead_views = AheadViews(program, storage)
        self.ahead: list[str] = []
        self.carry: list[str] = []
        self.previous: set[int] = set()
        self.maps = numbered(program.linear_maps)
        self.generic = numbered(program.generic)
        self.of_maps: dict[int, str] = {}
        self._links = {id(op.output): links(program, op) for op in program.ops}
        for op in reversed(program.ops):
            self._backward_op(op)
        self._carry()
        for number in sorted(self.streams):  # columns that the loop does not read
            self._complete(program.streams[number])
        for op in program.linear_maps:
            if id(self._root(op.output)) in self._buffers_of:
                self._complete(op.output)
                self.of_maps[self.maps[id(op)]] = self.buffer_of(op.output)[0].name

    # Operators ------------------------------------------------------------------------------------

    def _backward_op(self, op: Op) -> None:
        products = self._links[id(op.output)]
        for link in products:
            if self._is_reached(link.product):
                self._backward_slope(op, link)
        if products or not self._is_reached(op) or not op.passes_gradient:
            return
        if has_slope(op) and self._can_wait(op.inputs[0]):
            self._backward_slope(op, Link(op.output, op))
        elif op.is_linear:
            self._contribute(op.inputs[0], self._backward_linear(op))
        elif op.opcode is OpCode.COPY:
            for x, column in zip(op.inputs, op.columns, strict=True):
                if not self._shares(op, x):
                    self._backward_copy(op, x, column)
        elif op.opcode is OpCode.GENERIC:
            self._backward_generic(op, self.gradient(op.output))
        else:
            self._backward_elementwise(op)

    def _is_reached(self, op: Op) -> bool:
        """Whether a gradient reaches the output; if so, complete all its columns."""
        return id(self._root(op.output)) in self._buffers_of and self._complete(op.output)

    def _backward_linear(self, op: Op) -> Code:
        number = self.maps[id(op)]
        buffer, _ = self.buffer_of(op.output)
        dy = self.gradient(op.output, buffer.plane)
        if not buffer.plane:
            return lambda out: f"matmul({dy}, V{number}, {out})"
        inner = op.inputs[0].width
        label, width = f"{buffer.planes}_{inner}", buffer.planes * inner
        planes = self._new(Role.PLANE_SCRATCH, label, width, False, inner)
        scratch = self.views.view(planes, 0, width, inner)
        return lambda out: f"matmul_sum({dy}, V{number}, {scratch}, {out})"

    def _backward_copy(self, op: Op, x: Value, column: int) -> None:
        part = Value.columns(op.output, column, x.width)
        operands = [self.buffer_of(part)]
        if x.base.origin is not Origin.STATE:
            operands.append(self.buffer_of(x))
        plane = common_plane(operands, x.width)
        self._contribute(x, copy_of(self.gradient(part, plane)), plane)

    def _shares(self, op: Op, x: Value) -> bool:
        """Whether the input's gradient is the output's very buffer."""
        is_made = x.base.origin is Origin.OPERATOR
        return is_made and x.is_whole() and self._alias.get(id(x.base)) is op.output

    def _can_wait(self, x: Value) -> bool:
        """Whether a factor can use the memory of the gradient of `x` until that is written."""
        whole = [(x.column, x.width)]
        return self.buffer_of(x)[0].packed and self._missing(x) == whole

    def _backward_slope(self, op: Op, link: Link) -> None:
        """dx = dz ⊙ factor, where the factor, other ⊙ f'(x), is made ahead of the block."""
        part, z = link.part, link.product.output
        x = Value.columns(op.inputs[0].base, op.inputs[0].column + part.column, part.width)
        read = [x if op.node.kernel.reads == "input" else part]
        read += [] if link.other is None else [link.other]
        read_from = [self.ahead_views.buffer_of(v) for v in read]
        target = self.buffer_of(x)
        plane = common_plane([self.buffer_of(z), target, *read_from], x.width)
        if not self._can_wait(x):
            number = len(self.buffers)
            target = (self._new(Role.FACTOR, number, x.width, packed=True, plane=plane), 0)
        factor, saved, *others = [
            self.ahead_views.view(*v, x.width, plane) for v in [target, *read_from]
        ]
        self.ahead.append(f"{kernel_name(op)}.slope({saved}, {factor})")
        self.ahead += [f"multiply({factor}, {other}, {factor})" for other in others]
        self.previous |= {v.base.number for v in read if v.base.origin is Origin.STATE}
        dz, held = self.gradient(z, plane), self.views.view(*target, x.width, plane)
        self._contribute(x, lambda out: f"multiply({dz}, {held}, {out})", plane)

    def _backward_elementwise(self, op: Op) -> None:
        saved = [v for v in backward_reads(op) if v.base.origin is not Origin.MEMORY]
        targets = [
            x
            for x in op.inputs
            if x.base.origin in (Origin.STREAM, Origin.OPERATOR) and not self._links.get(id(x.base))
        ]
        operands = [self.buffer_of(v) for v in [op.output, *targets]]
        operands += [self.views.buffer_of(v) for v in saved]
        plane = common_plane(operands, op.output.width)
        dy = self.gradient(op.output, plane)
        for x, code in zip(op.inputs, gradient_codes(op, dy, self.views, plane), strict=True):
            known = self._shares(op, x) or self._links.get(id(x.base))
            if code is not None and not known:
                self._contribute(x, code, plane)

    def _backward_generic(self, op: Op, dy: str) -> None:
        retains = op.node.retains
        saved, targets, scratch_of = [], [], []
        for position, x in enumerate(op.inputs):
            is_memory = x.base.origin is Origin.MEMORY
            is_read = retains.input(position) or is_memory
            saved.append(argument(x, self.views) if is_read else "None")
            targets.append("None" if is_memory else self._scratch_view(x.width, own=True))
            if not is_memory:
                scratch_of.append((x, targets[-1]))
        output = self.views.of(op.output) if retains.output else "None"
        self.body.append(
            f"G{self.generic[id(op)]}.backward(t, n, {dy}, {output}, ({', '.join(saved)},), "
            f"({', '.join(targets)},))"
        )
        for x, scratch in scratch_of:
            self._contribute(x, copy_of(scratch))

    # The state ------------------------------------------------------------------------------------

    def _carry(self) -> None:
        """Carry the gradient of the state to the step before.

        Lines that read carried gradients first write to scratch, then the carried gradients are
        written; a line that reads only what it overwrites works in place.
        """
        first: list[str] = []
        last: list[str] = []
        for k, state in enumerate(self.program.states):
            left = ProgramBuffer(Role.LEFT_GRADIENT, k, state.width, packed=False)
            carried = self.views.view(left, 0, state.width)
            codes = self._to_states.get(k, [])
            reading = [code for code in codes if self._carried(code("_"))]
            others = [code for code in codes if code not in reading]
            if not codes:
                last.append(f"{carried}[...] = 0")
            elif not reading:
                last += self._sum(others, carried, state.width)
            elif len(reading) == 1 and self._works_in_place(reading[0]("_"), carried):
                last.append(reading[0](carried))
                for code in others:
                    last += self._sum([code], carried, state.width, more=True)
            else:
                buffer = self._new(Role.CARRY_SCRATCH, k, state.width, packed=False)
                scratch = self.views.view(buffer, 0, state.width)
                first += self._sum(codes, scratch, state.width)
                last.append(copy_of(scratch)(carried))
        self.carry = [*first, *last]

    def _sum(self, codes: list[Code], target: str, width: int, more: bool = False) -> list[str]:
        lines: list[str] = []
        for code in codes:
            if not lines and not more:
                lines.append(code(target))
            else:
                lines += self._add_to(target, code, width)
        return lines

    def _carried(self, line: str) -> list[str]:
        """The views of carried gradients that a line reads."""
        views = self.views.read_by(line)
        return [name for name, buffer in views.items() if buffer.role is Role.LEFT_GRADIENT]

    def _works_in_place(self, line: str, carried: str) -> bool:
        return self._carried(line) == [carried] and line.startswith("multiply")

    # Lines ----------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """Lines of `def backward(A, blocks)`."""
        names = [f"X{k}" for k in range(len(self.program.streams))]
        names += [f"dX{k}" for k in sorted(self.streams)]
        names += [buffer.name for buffer in self.storage.packed]
        names += [f"H{k}" for k in sorted(self.previous)]
        names += [f"V{self.maps[id(op)]}" for op in self.program.ops if op.is_linear]
        names += [f"{letter}{k}" for k in range(len(self.program.states)) for letter in "IC"]
        names += ["given", "dY", *self.buffers]
        names += [f"G{number}" for number in self.generic.values()]
        lines = ["def backward(A, blocks):"]
        lines += [f"    {name} = A[{name!r}]" for name in names]
        lines += ["    for s, e, steps in reversed(blocks):", "        n = e - s"]
        lines += [
            f"        {line}" for line in with_used(self.ahead_views.lines.values(), self.ahead)
        ]
        lines.append("        for t, (s, e, n, p) in reversed(steps):")
        before = []
        for k, value in enumerate(self.program.following):
            buffer, column = self.storage.buffer_of(value)
            if buffer.plane:
                rows = f"{buffer.name}[{column // buffer.plane}, p:p + n]"
                column %= buffer.plane
            else:
                rows = f"{buffer.name}[p:p + n]"
            if value.width < (buffer.plane or buffer.width):
                rows += f"[:, {column}:{column + value.width}]"
            before.append(f"h{k} = I{k}[:n] if p < 0 else {rows}")
        # Nothing asks for the gradient of a state that was not given.
        carry = [AFTER_ZEROS, *[f"    {line}" for line in self.carry]] if self.carry else []
        step = with_used([*before, *self.views.lines.values()], [*self.body, *carry])
        return lines + [f"            {line}" for line in step]
