"""The arrays that a call of a step works on: some columns of buffers, in the rows of a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from dynbatch.compiler.buffers import Columns, ProgramBuffer, Role, Storage
from dynbatch.compiler.ir import Origin, Value
from dynbatch.parameter import Array


class ColumnView(NamedTuple):
    """Columns of a buffer: (rows, width), or with a plane width (width / plane, rows, plane)."""

    buffer: ProgramBuffer
    column: int
    width: int
    plane: int = 0

    def __str__(self) -> str:
        name, end = self.buffer.name, self.column + self.width
        return name if self.width == self.buffer.width else f"{name}[{self.column}:{end}]"


class CallConstant:
    """A constant of a call, and of no other: 0.0 and -0.0 are equal but not alike."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return repr(self.value)


Operand = ColumnView | CallConstant | str
"""What a call gets: a view, a constant, or what has a name: weights, operators, `t` and `n`."""


class ValuePlaces:
    """Where the values that a program reads and makes lie."""

    def __init__(self, *storages: Storage) -> None:
        self._storages = storages
        self._inputs: dict[int, ProgramBuffer] = {}

    def of(self, value: Value) -> Columns:
        """Columns of a buffer."""
        base = value.base
        for storage in self._storages:
            if storage.has_place(base):
                return storage.columns_of(value)
        known = self._inputs.get(id(base))
        if known is None:
            is_stream = base.origin is Origin.STREAM
            assert is_stream or base.origin is Origin.STATE, f"{base.origin} has no memory"
            role = Role.STREAM if is_stream else Role.STATE
            known = ProgramBuffer(role, base.number, base.width, packed=role is not Role.STATE)
            self._inputs[id(base)] = known
        return Columns(known, value.column, value.width)

    def rows(self, value: Value) -> ColumnView:
        """A value as plain rows."""
        return ColumnView(*self.of(value))


def alike(operands: Sequence[Columns]) -> list[list[ColumnView]]:
    """Views of operands of one width, cut alike; several where their planes differ."""
    width = operands[0].width
    edges = {0, width}
    planes: set[int] = set()
    for buffer, column, _ in operands:
        if is_across(buffer, column, width):
            planes.add(buffer.plane)
            edges |= {at for at in range(width) if (column + at) % buffer.plane == 0}
    plane = max(planes, default=width)
    ends = sorted(edges)
    if len(planes) < 2 and all([end % plane == 0 for end in ends]):
        return [[ColumnView(*columns, 0 if plane == width else plane) for columns in operands]]
    return [
        [ColumnView(buffer, column + first, end - first) for buffer, column, _ in operands]
        for first, end in itertools.pairwise(ends)
    ]


def is_across(buffer: ProgramBuffer, column: int, width: int) -> bool:
    """Whether columns lie in more than one plane."""
    return bool(buffer.plane) and column // buffer.plane != (column + width - 1) // buffer.plane


def cut(array: Array, view: ColumnView) -> Array:
    """The columns of a view, of all rows of its buffer's array."""
    buffer, column, width, plane = view
    if array.ndim > 2 and is_across(buffer, column, width):
        return array[column // buffer.plane : (column + width) // buffer.plane]
    if array.ndim > 2:
        number, column = divmod(column, buffer.plane)
        array = array[number]
    rows = array if width == array.shape[1] else array[:, column : column + width]
    return rows.reshape(len(rows), width // plane, plane).transpose(1, 0, 2) if plane else rows
