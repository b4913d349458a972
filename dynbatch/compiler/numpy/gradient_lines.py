"""Places of gradients in generated code, and the lines that write or add them."""

from __future__ import annotations

import re

from dynbatch.compiler.buffers import ProgramBuffer, Role, Storage, plane_of
from dynbatch.compiler.ir import Op, OpCode, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.views import Code, Views, copy_of


class GradientLines:
    """The lines of a step so far, and the columns of each gradient that they have written.

    The first contribution to a gradient writes it, later ones add.

    Attributes:
        body:    lines of a step.
        buffers: gradient buffers by name.
        streams: streams that receive a gradient directly.
    """

    def __init__(self, program: LoopProgram, storage: Storage) -> None:
        self.program = program
        self.storage = storage
        self.views = Views(program, storage)
        self.body: list[str] = []
        self.buffers: dict[str, ProgramBuffer] = {}
        self.streams: set[int] = set()
        self._alias: dict[int, Value] = {}
        self._buffers_of: dict[int, tuple[ProgramBuffer, int]] = {}
        self._written: dict[int, list[tuple[int, int]]] = {}
        self._to_states: dict[int, list[Code]] = {}
        self._scratch = 0
        self._find_aliases()
        self._seed()

    # Buffers --------------------------------------------------------------------------------------

    def _find_aliases(self) -> None:
        """Let the operands of sums share the sum's gradient buffer where possible."""
        leaving = self.program.leaving()
        makers = {id(op.output): op for op in [*self.program.stream_maps, *self.program.ops]}
        for op in reversed(self.program.ops):  # so that roots are final
            is_copy = op.opcode is OpCode.COPY and len(op.inputs) == 1
            if not (is_copy or op.opcode is OpCode.SHIFT or op.is_add):
                continue
            for x in op.inputs:
                twice = sum([x.overlaps(other) for other in op.inputs]) > 1
                single = len(self.program.readers(x)) == 1 and not twice
                if x.base.origin is not Origin.OPERATOR or not x.is_whole() or not single:
                    continue
                if id(x.base) not in leaving and self._fits(makers[id(x.base)], op.output):
                    self._alias[id(x.base)] = op.output

    def _fits(self, maker: Op, value: Value) -> bool:
        """Whether the backward of `maker` can read its gradient in the buffer of `value`."""
        plane = plane_of(self._root(value))
        if maker.is_linear:
            return plane == self.storage.buffer_of(maker.output)[0].plane
        return maker.opcode is not OpCode.GENERIC or not plane

    def _root(self, value: Value) -> Value:
        base = value.base
        while id(base) in self._alias:
            base = self._alias[id(base)].base
        return base

    def _buffer_of_base(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Array and first column of the gradient of a base value."""
        root = self._root(value)
        known = self._buffers_of.get(id(root))
        if known is not None:
            return known
        packed = any([self._root(op.output) is root for op in self.program.linear_maps])
        following = [k for k, v in enumerate(self.program.following) if v is root]
        column = 0
        if following and not packed:
            buffer = ProgramBuffer(Role.LEFT_GRADIENT, following[0], root.width, packed=False)
        elif not packed and root in self.program.exports:
            buffer, column = self._of_exports(), self._export_column(root)
        else:
            number = len(self.buffers)
            buffer = self._new(Role.GRADIENT, number, root.width, packed, plane_of(root))
        self._buffers_of[id(root)] = buffer, column
        return buffer, column

    def _new(
        self, role: Role, label: int | str, width: int, packed: bool, plane: int = 0
    ) -> ProgramBuffer:
        """The gradient buffer of this name, made at its first use."""
        buffer = ProgramBuffer(role, label, width, packed, plane)
        return self.buffers.setdefault(buffer.name, buffer)

    def _of_exports(self) -> ProgramBuffer:
        width = sum([v.width for v in self.program.exports])
        return ProgramBuffer(Role.EXPORT_GRADIENT, "", width, packed=True)

    def _export_column(self, value: Value) -> int:
        exports = self.program.exports
        return sum(v.width for v in exports[: exports.index(value)])

    def buffer_of(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Array and first column of the gradient of a value or of a stream."""
        base = value.base
        if base.origin is Origin.STREAM:
            self.streams.add(base.number)
            stream = ProgramBuffer(Role.STREAM_GRADIENT, base.number, base.width, packed=True)
            return stream, value.column
        buffer, column = self._buffer_of_base(value)
        return buffer, column + value.column

    def gradient(self, value: Value, plane: int = 0) -> str:
        """The expression for the gradient of a value, or of a stream, in this step."""
        return self.views.view(*self.buffer_of(value), value.width, plane)

    # Contributions --------------------------------------------------------------------------------

    def _seed(self) -> None:
        for k, value in enumerate(self.program.following):
            buffer, _ = self._buffer_of_base(value)
            if buffer.role is Role.LEFT_GRADIENT and buffer.label == k:
                self._mark(value)
            else:
                self._contribute(value, copy_of(f"C{k}[:n]"))
        for value in self.program.exports:
            if self._buffer_of_base(value)[0].role is Role.EXPORT_GRADIENT:
                self._mark(value)
            else:
                column = self._export_column(value)
                view = self.views.view(self._of_exports(), column, value.width)
                self._contribute(value, copy_of(view))

    def _mark(self, value: Value) -> None:
        self._written.setdefault(id(self._key(value)), []).append((value.column, value.width))

    def _key(self, value: Value) -> Value:
        return value.base if value.base.origin is Origin.STREAM else self._root(value)

    def _missing(self, value: Value) -> list[tuple[int, int]]:
        """Columns of `value` that nothing has written yet, as (column, width)."""
        holes = [(value.column, value.column + value.width)]
        for column, width in self._written.get(id(self._key(value)), []):
            cut: list[tuple[int, int]] = []
            for low, high in holes:
                cut += [(low, min(high, column)), (max(low, column + width), high)]
            holes = [(low, high) for low, high in cut if low < high]
        return [(low, high - low) for low, high in holes]

    def _complete(self, value: Value) -> bool:
        """Zero the columns that are not written; return False if none is written."""
        missing = self._missing(value)
        if missing == [(value.column, value.width)]:
            return False
        plane = self.buffer_of(value)[0].plane or value.base.width
        for column, width in missing:
            end = column + width
            while column < end:  # plane by plane
                stop = min(end, column // plane * plane + plane)
                part = Value.columns(value.base, column, stop - column)
                self.body.append(f"{self.gradient(part)}[...] = 0")
                self._mark(part)
                column = stop
        return True

    def _contribute(self, value: Value, code: Code, plane: int = 0) -> None:
        """Write the result of `code` to the gradient of a value, or add it there."""
        origin = value.base.origin
        if origin is Origin.MEMORY:
            return
        if origin is Origin.STATE:
            self._contribute_to_state(value, code, plane)
            return
        target = self.gradient(value, plane)
        if self._missing(value) == [(value.column, value.width)]:
            self.body.append(code(target))
            self._mark(value)
            return
        self._complete(value)
        self.body += self._add_to(target, code, value.width, plane)

    def _add_to(self, target: str, code: Code, width: int, plane: int = 0) -> list[str]:
        """Lines that add the result of `code` to `target`; a copy is added directly."""
        copied = re.fullmatch(r"copyto\(_, (\S+)\)", code("_"))
        if copied:
            return [f"add({target}, {copied[1]}, {target})"]
        scratch = self._scratch_view(width, plane)
        return [code(scratch), f"add({target}, {scratch}, {target})"]

    def _contribute_to_state(self, value: Value, code: Code, plane: int) -> None:
        number, width = value.base.number, value.base.width
        if value.is_whole() and not (plane and width > plane):
            self._to_states.setdefault(number, []).append(code)
            return
        buffer = self._scratch_buffer(width, own=True)
        whole = self.views.view(buffer, 0, width)
        cut = self.views.view(buffer, value.column, value.width, plane)
        self.body += [f"{whole}[...] = 0", code(cut)]
        self._to_states.setdefault(number, []).append(copy_of(whole))

    def _scratch_buffer(self, width: int, plane: int = 0, own: bool = False) -> ProgramBuffer:
        """Scratch for a sum; with `own` it is not shared."""
        plane = plane if width > plane else 0
        label = f"{width}" + (f"_BY_{plane}" if plane else "")
        if own:
            self._scratch += 1
            label += f"_{self._scratch}"
        return self._new(Role.SUM_SCRATCH, label, width, False, plane)

    def _scratch_view(self, width: int, plane: int = 0, own: bool = False) -> str:
        return self.views.view(self._scratch_buffer(width, plane, own), 0, width, plane)
