"""Names and definitions of array views in a step of generated Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from dynbatch.compiler.buffers import ProgramBuffer, Role, Storage
from dynbatch.compiler.ir import Origin, Value
from dynbatch.compiler.lowering import LoopProgram

Code = Callable[[str], str]
"""Makes the line that writes its result to a view of this name."""


class Views:
    """Names of array views within a step, and the lines that make them."""

    def __init__(self, program: LoopProgram, storage: Storage) -> None:
        self.program = program
        self.storage = storage
        self.lines: dict[str, str] = {}
        self.buffers: dict[str, ProgramBuffer] = {}

    def buffer_of(self, value: Value) -> tuple[ProgramBuffer, int]:
        """The array that holds a value, and its first column there."""
        base = value.base
        if base.origin is Origin.STREAM:
            stream = ProgramBuffer(Role.STREAM, base.number, base.width, packed=True)
            return stream, value.column
        if base.origin is Origin.STATE:
            state = ProgramBuffer(Role.STATE, base.number, base.width, packed=False)
            return state, value.column
        return self.storage.buffer_of(value)

    def of(self, value: Value, plane: int = 0) -> str:
        """The expression for a value in this step, as (n, width) or, by planes, (k, n, plane)."""
        return self.view(*self.buffer_of(value), value.width, plane)

    def view(self, buffer: ProgramBuffer, column: int, width: int, plane: int = 0) -> str:
        """The expression for some columns of an array in this step."""
        name = self._view(buffer, column, width, plane)
        self.buffers[name] = buffer
        return name

    def read_by(self, line: str) -> dict[str, ProgramBuffer]:
        """The views that a line names, with their definitions."""
        names = re.findall(r"\w+", line)
        return {name: self.buffers[name] for name in names if name in self.buffers}

    def _view(self, buffer: ProgramBuffer, column: int, width: int, plane: int) -> str:
        whole = self._rows(buffer)
        if buffer.plane and width > buffer.plane:
            return self._planes(whole, buffer, column, width, plane)
        name = whole
        if buffer.plane:
            number, column = divmod(column, buffer.plane)
            name = self._line(f"{whole}_{number}", f"{whole}[{number}]")
        if width < (buffer.plane or buffer.width):
            name = self._line(f"{name}_{column}_{width}", f"{name}[:, {column}:{column + width}]")
        if plane and width > plane:
            cut = f"{name}.reshape(n, {width // plane}, {plane}).transpose(1, 0, 2)"
            name = self._line(f"{name}_by_{plane}", cut)
        return name

    def _planes(
        self, whole: str, buffer: ProgramBuffer, column: int, width: int, plane: int
    ) -> str:
        first, last = column // buffer.plane, (column + width) // buffer.plane
        assert plane == buffer.plane and column % plane == 0 and width % plane == 0
        if width == buffer.width:
            return whole
        return self._line(f"{whole}_{first}_to_{last}", f"{whole}[{first}:{last}]")

    def _rows(self, buffer: ProgramBuffer) -> str:
        name = buffer.name.lower()
        if buffer.role is Role.STATE:  # has been cut already
            return name
        if not buffer.plane:
            return self._line(name, f"{buffer.name}[{'s:e' if buffer.packed else ':n'}]")
        if buffer.packed:
            return self._line(name, f"{buffer.name}[:, s:e]")
        shape = f"{buffer.planes}, n, {buffer.plane}"
        return self._line(name, f"{buffer.name}[:n * {buffer.width}].reshape({shape})")

    def _line(self, name: str, expression: str) -> str:
        self.lines.setdefault(name, f"{name} = {expression}")
        return name


def with_used(lines: Iterable[str], body: Sequence[str]) -> list[str]:
    """`body` after the lines `name = …` that it needs."""
    kept = list(body)
    read = set(re.findall(r"\w+", " ".join(body)))
    for line in reversed(list(lines)):
        name, expression = line.split(" = ", 1)
        if name in read:
            kept.insert(0, line)
            read.update(re.findall(r"\w+", expression))
    return kept


def common_plane(operands: Iterable[tuple[ProgramBuffer, int]], width: int) -> int:
    """The plane width in which operands of one width must be seen; 0 for plain rows."""
    planes = {buffer.plane for buffer, _ in operands if buffer.plane and width > buffer.plane}
    assert len(planes) < 2, f"operands in planes of different widths {planes}"
    return planes.pop() if planes else 0


def copy_of(view: str) -> Code:
    """The code that copies a view."""
    return lambda out: f"copyto({out}, {view})"
