"""Packs the arguments of a kernel as its parameters lie in memory, where the driver takes them.

The alignment of numbers and pointers is the same on the host and on the device, so that `struct`
with native alignment gives the layout of CUDA's calling convention. `cuLaunchKernel` reads it
through its parameter `extra` (CUDA driver API, "Execution Control").
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.cupy_types import device_address
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime.source import KernelParameter

SCALARS: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned short": np.uint16,
    "unsigned int": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
POINTER = np.dtype(np.uint64)
# What a pointer to a type without a name in NumPy points to. A table of it is one of bytes.
ANY = np.dtype(np.uint8)

# The words in front of packed arguments, to which `extra` points: two keys with the addresses of
# the arguments and of their size, the end, and that size.
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0
HEADER_WORDS, SIZE_WORD = 6, 5

Argument = Array | np.generic | float | None
"""An array of host or device, an address, a number, or None for NULL."""

Arguments = Sequence[Argument]
Stage = Callable[[Array, DType], int]
"""Stages a host array as a table of a dtype; gives its place in the next upload."""

Tables = list[tuple[int, int]]
"""(Position in words of eight bytes, place in the upload) of each table among arguments."""


class PerStep(NamedTuple):
    """An argument with one value for each step of a prepared loop: numbers or addresses."""

    values: Array


class Packer:
    """The layout of one kernel's parameters, for one element type.

    Args:
        kernel:     its name, which errors show.
        parameters: from its source.
        real:       the dtype that REAL stands for.

    Attributes:
        offsets: of the arguments, in bytes.
        size:    bytes of the packed arguments.

    Raises:
        DtypeError: a parameter is a struct.
    """

    __slots__ = ("_count", "_dtypes", "_flags", "_kernel", "_names", "_pack", "_pointers",
                 "offsets", "size")  # fmt: skip

    def __init__(self, kernel: str, parameters: Sequence[KernelParameter], real: DType) -> None:
        self._kernel = kernel
        self._names = [parameter.name for parameter in parameters]
        self._count = len(parameters)
        self._dtypes: list[DType] = []
        self._flags: list[int] = []
        self._pointers: list[tuple[int, int, DType]] = []
        self.offsets: list[int] = []
        self.size = 0
        for position, parameter in enumerate(parameters):
            scalar = real.type if parameter.type == "REAL" else SCALARS.get(parameter.type)
            if scalar is None and not parameter.is_pointer:
                raise DtypeError(f"{self._where(position)} is of type {parameter.type}, no number")
            of_scalar = ANY if scalar is None else np.dtype(scalar)
            dtype = POINTER if parameter.is_pointer else of_scalar
            offset = -(-self.size // dtype.itemsize) * dtype.itemsize
            if parameter.is_pointer:
                self._pointers.append((position, offset // POINTER.itemsize, of_scalar))
            elif dtype == np.bool_:
                self._flags.append(position)
            self._dtypes.append(dtype)
            self.offsets.append(offset)
            self.size = offset + dtype.itemsize
        self._pack = struct.Struct("@" + "".join([dtype.char for dtype in self._dtypes])).pack

    def pack(self, args: Arguments, stage: Stage) -> tuple[bytes, Tables]:
        """The bytes of a launch's arguments, without the addresses of their tables.

        Raises: as `Kernels.launch`, which says what arguments are.
        """
        if len(args) != self._count:
            raise ShapeError(f"{self._kernel} takes {self._count} arguments, not {len(args)}")
        values: list[Any] = list(args)
        tables: Tables = []
        for position, word, dtype in self._pointers:
            value = values[position]
            if type(value) is int:
                continue
            if value is None:
                values[position] = 0
            elif isinstance(value, np.ndarray):
                values[position] = 0
                tables.append((word, stage(value, dtype)))
            elif getattr(value, "dtype", None) == dtype and value.flags.c_contiguous:
                values[position] = value.data.ptr
            else:
                values[position] = self._other_address(position, value, dtype)
        for position in self._flags:
            values[position] = self._integer(position, values[position])
        try:
            return self._pack(*values), tables
        except (struct.error, OverflowError):
            return self._pack(*map(self._cast, range(self._count), values)), tables

    def room(self, launches: int) -> Array:
        """Rows of words: a header, which says where the arguments are, and room for them.

        The address of a row is what the driver wants as `extra`.
        """
        words = np.zeros((launches, HEADER_WORDS + -(-self.size // POINTER.itemsize)), POINTER)
        rows = row_addresses(words)
        words[:, 0], words[:, 1] = BUFFER_POINTER, rows + HEADER_WORDS * POINTER.itemsize
        words[:, 2], words[:, 3] = BUFFER_SIZE, rows + SIZE_WORD * POINTER.itemsize
        words[:, 4], words[:, SIZE_WORD] = END, self.size
        return words

    def rows(
        self, args: Sequence[Argument | PerStep], steps: int, stage: Stage
    ) -> tuple[Array, Tables]:
        """The arguments of `steps` launches in `room`, without the addresses of their tables.

        Raises: as `Kernels.launch`.
        """
        varying = [(k, arg.values) for k, arg in enumerate(args) if isinstance(arg, PerStep)]
        constant = [0 if isinstance(arg, PerStep) else arg for arg in args]
        data, tables = self.pack(constant, stage)
        words = self.room(steps)
        room = words.view(np.uint8)[:, HEADER_WORDS * POINTER.itemsize :]
        room[:, : self.size] = np.frombuffer(data, np.uint8)
        for k, values in varying:
            first, dtype = self.offsets[k], self._dtypes[k]
            column = room[:, first : first + dtype.itemsize].view(dtype)[:, 0]
            column[...] = values
            if dtype.kind != "f" and dtype != POINTER and (column != values).any():
                raise OverflowError(f"{self._where(k)}: a step's value does not fit {dtype}")
        return words, tables

    def _where(self, position: int) -> str:
        return f"{self._kernel}: argument {self._names[position]!r}"

    def _other_address(self, position: int, value: Any, dtype: DType) -> int:
        """The address of anything but an array as it should be."""
        if isinstance(value, int):
            return int(value)
        actual = getattr(value, "dtype", None)
        if actual is None:
            raise DtypeError(f"{self._where(position)} is a pointer, not {value!r}")
        if actual != dtype and dtype != ANY:
            raise DtypeError(f"{self._where(position)} points to {dtype}, not {actual}")
        if not value.flags.c_contiguous:
            raise ShapeError(f"{self._where(position)} is not C-contiguous")
        return device_address(value)

    def _integer(self, position: int, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise DtypeError(f"{self._where(position)} is an integer, not {value!r}") from None

    def _cast(self, position: int, value: Any) -> np.generic:
        """The value as NumPy casts it, which says what does not fit."""
        dtype = self._dtypes[position]
        if dtype.kind != "f":
            value = self._integer(position, value)
        return dtype.type(value)  # type: ignore[no-any-return]


def row_addresses(words: Array) -> Array:
    first = np.uint64(words.ctypes.data)
    return first + np.arange(len(words), dtype=POINTER) * np.uint64(words.strides[0])
