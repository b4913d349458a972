"""Places of a step's values, as expressions of C and of CUDA C++."""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.compiler.buffers import ProgramBuffer, Role, Storage
from dynbatch.compiler.ir import Origin, Value


class Pointer(NamedTuple):
    """The place of some columns of a value in the rows of a step.

    array, column, width: columns of an array; those of two values may be the same.
    pointer: to the first element of the first row.
    stride:  elements from a row to the next.
    """

    array: str
    column: int
    width: int
    pointer: str
    stride: str

    def overlaps(self, other: Pointer) -> bool:
        return (
            self.array == other.array
            and self.column < other.column + other.width
            and other.column < self.column + self.width
        )


class Pointers:
    """The places of a program's values in rows `s` to `s + n - 1` of a step.

    Args:
        storages: where values may have memory.
    """

    def __init__(self, *storages: Storage) -> None:
        self._storages = storages
        self._known: dict[int, tuple[ProgramBuffer, int]] = {}

    def of(self, value: Value) -> Pointer:
        base, column, width = value.base, value.column, value.width
        if base.origin is Origin.STATE:
            name = f"h{base.number}"
            return Pointer(name, column, width, f"{name} + {column}", f"{name}_row")
        buffer, first = self.buffer_of(base)
        return place_in(buffer, first + column, width, "s")

    def buffer_of(self, base: Value) -> tuple[ProgramBuffer, int]:
        """The array of a base value that is not a state, and its first column there."""
        known = self._known.get(id(base))
        if known is None and base.origin is Origin.STREAM:
            known = ProgramBuffer(Role.STREAM, base.number, base.width, packed=True), 0
        elif known is None:
            storage = next(each for each in self._storages if each.has_place(base))
            known = storage.buffer_of(base)
        self._known[id(base)] = known
        return known


def place_in(buffer: ProgramBuffer, column: int, width: int, row: str) -> Pointer:
    first = f"{row} * {buffer.width} + " if buffer.packed else ""
    pointer = f"{buffer.name} + {first}{column}"
    return Pointer(buffer.name, column, width, pointer, str(buffer.width))
