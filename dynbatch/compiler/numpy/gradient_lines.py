"""Where the gradients of a program live in generated code, and the lines that write or add them."""

from __future__ import annotations

import re
from collections.abc import Callable

from dynbatch.compiler.buffers import ProgramBuffer, Storage, plane_of
from dynbatch.compiler.numpy.forward import Views
from dynbatch.compiler.program import Op, Program, Value, readers

Code = Callable[[str], str]


class GradientLines:
    """The lines of a step so far, and what of each gradient they have written.

    The first contribution to a gradient writes it, later ones add. Names are those of
    `emit_backward`.

    Attributes:
        body:    lines of a step.
        buffers: gradient buffers by name.
        streams: streams that receive a gradient directly.
    """

    def __init__(self, program: Program, storage: Storage) -> None:
        self.program = program
        self.storage = storage
        self.views = Views(program, storage)
        self.body: list[str] = []
        self.buffers: dict[str, ProgramBuffer] = {}
        self.streams: set[int] = set()
        self._alias: dict[int, Value] = {}
        self._places: dict[int, tuple[ProgramBuffer, int]] = {}
        self._written: dict[int, list[tuple[int, int]]] = {}
        self._to_previous: dict[int, list[Code]] = {}
        self._scratch = 0
        self._find_aliases()
        self._seed()

    # Places ---------------------------------------------------------------------------------------

    def _find_aliases(self) -> None:
        """A sum passes its gradient on unchanged: its operands may share the very buffer."""
        leaving = self.program.leaving()
        makers = {id(op.output): op for op in [*self.program.stream_maps, *self.program.ops]}
        for op in reversed(self.program.ops):  # so that roots are final
            passes = op.kind == "shift" or (op.kind == "copy" and len(op.inputs) == 1)
            if not passes and not (op.kind == "binary" and type(op.node).__name__ == "Add"):
                continue
            for x in op.inputs:
                twice = sum([x.overlaps(other) for other in op.inputs]) > 1
                single = len(readers(self.program, x)) == 1 and not twice
                if x.base.origin != "op" or not x.is_whole() or not single:
                    continue
                if id(x.base) not in leaving and self._fits(makers[id(x.base)], op.output):
                    self._alias[id(x.base)] = op.output

    def _fits(self, maker: Op, value: Value) -> bool:
        """Whether the backward of `maker` can read its gradient in the buffer of `value`."""
        plane = plane_of(self._root(value))
        if maker.kind == "linear":
            return plane == self.storage.place(maker.output)[0].plane
        return maker.kind != "generic" or not plane

    def _root(self, value: Value) -> Value:
        base = value.base
        while id(base) in self._alias:
            base = self._alias[id(base)].base
        return base

    def _place(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Array and first column of the gradient of a base value."""
        root = self._root(value)
        known = self._places.get(id(root))
        if known is not None:
            return known
        packed = any(
            self._root(op.output) is root
            for op in [*self.program.stream_maps, *self.program.ops]
            if op.kind == "linear"
        )
        following = [k for k, v in enumerate(self.program.following) if v is root]
        if following and not packed:
            place = (ProgramBuffer(f"C{following[0]}", root.width, packed=False), 0)
        elif not packed and root in self.program.exports:
            place = (
                ProgramBuffer("dY", self._export_width(), packed=True),
                self._export_column(root),
            )
        else:
            name = f"D{len(self.buffers)}"
            self.buffers[name] = ProgramBuffer(name, root.width, packed, plane_of(root))
            place = (self.buffers[name], 0)
        self._places[id(root)] = place
        return place

    def _export_column(self, value: Value) -> int:
        exports = self.program.exports
        return sum(v.width for v in exports[: exports.index(value)])

    def _export_width(self) -> int:
        return sum(v.width for v in self.program.exports)

    def place(self, value: Value) -> tuple[ProgramBuffer, int]:
        """Array and first column of the gradient of a value or of a stream."""
        base = value.base
        if base.origin == "stream":
            self.streams.add(base.place)
            return ProgramBuffer(f"dX{base.place}", base.width, packed=True), value.column
        buffer, column = self._place(value)
        return buffer, column + value.column

    def gradient(self, value: Value, plane: int = 0) -> str:
        """The expression for the gradient of a value, or of a stream, in this step."""
        return self.views.view(*self.place(value), value.width, plane)

    # Contributions --------------------------------------------------------------------------------

    def _seed(self) -> None:
        for k, value in enumerate(self.program.following):
            if self._place(value)[0].name == f"C{k}":
                self._mark(value)
            else:
                self._contribute(value, lambda out, k=k: f"copyto({out}, C{k}[:n])")  # type: ignore[misc]
        for value in self.program.exports:
            if self._place(value)[0].name == "dY":
                self._mark(value)
                continue
            whole = ProgramBuffer("dY", self._export_width(), packed=True)
            view = self.views.view(whole, self._export_column(value), value.width)
            self._contribute(value, lambda out, v=view: f"copyto({out}, {v})")  # type: ignore[misc]

    def _mark(self, value: Value) -> None:
        self._written.setdefault(id(self._key(value)), []).append((value.column, value.width))

    def _key(self, value: Value) -> Value:
        return value.base if value.base.origin == "stream" else self._root(value)

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
        """Clear what nothing wrote; False if nothing was written at all."""
        missing = self._missing(value)
        if missing == [(value.column, value.width)]:
            return False
        plane = self.place(value)[0].plane or value.base.width
        for column, width in missing:
            end = column + width
            while column < end:  # plane by plane
                stop = min(end, column // plane * plane + plane)
                part = Value(stop - column, value.base.origin, value.base.place)
                part.base, part.column = value.base, column
                self.body.append(f"{self.gradient(part)}[...] = 0")
                self._mark(part)
                column = stop
        return True

    def _contribute(self, value: Value, code: Code, plane: int = 0) -> None:
        """Write, or add, what `code` makes to a value's gradient, seen in planes if `plane`."""
        origin = value.base.origin
        if origin == "memory":
            return
        if origin == "prev":
            self._contribute_previous(value, code, plane)
            return
        target = self.gradient(value, plane)
        if self._missing(value) == [(value.column, value.width)]:
            self.body.append(code(target))
            self._mark(value)
            return
        self._complete(value)
        self.body += self._add_to(target, code, value.width, plane)

    def _add_to(self, target: str, code: Code, width: int, plane: int = 0) -> list[str]:
        """Lines that add what `code` makes to `target`; what only copies is added at once."""
        copied = re.fullmatch(r"copyto\(_, (\S+)\)", code("_"))
        if copied:
            return [f"add({target}, {copied[1]}, {target})"]
        scratch = self._scratch_view(width, plane)
        return [code(scratch), f"add({target}, {scratch}, {target})"]

    def _contribute_previous(self, value: Value, code: Code, plane: int) -> None:
        place, width = value.base.place, value.base.width
        if value.is_whole() and not (plane and width > plane):
            self._to_previous.setdefault(place, []).append(code)
            return
        whole = self._scratch_view(width, fresh=True)
        buffer = self.buffers[whole.upper()]
        cut = self.views.view(buffer, value.column, value.width, plane)
        self.body += [f"{whole}[...] = 0", code(cut)]
        self._to_previous.setdefault(place, []).append(lambda out: f"copyto({out}, {whole})")

    def _scratch_view(self, width: int, plane: int = 0, fresh: bool = False) -> str:
        plane = plane if width > plane else 0
        name = f"Z{width}" + (f"_BY_{plane}" if plane else "")
        if fresh:
            self._scratch += 1
            name += f"_{self._scratch}"
        buffer = self.buffers.setdefault(name, ProgramBuffer(name, width, False, plane))
        return self.views.view(buffer, 0, width, plane)
