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
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.source import KernelParameter
from dynbatch.kernels.cuda.runtime.staging import Table

SCALARS: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
POINTER = np.dtype(np.uint64)
BYTES = np.dtype(np.uint8)  # the dtype of a table where the kernel's type has no name in NumPy

# The words in front of packed arguments, which `extra` points to: two keys with the addresses of
# the arguments and of their size, the end, and that size.
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0
HEADER_WORDS = 6

Argument = Array | np.generic | float | None
"""An array of host or device, an address, a number, or None for NULL."""

Arguments = Sequence[Argument]
Stage = Callable[[Array, DType], Table]
"""Stages a host array as a table of a dtype."""


class PerStep(NamedTuple):
    """An argument with one value for each step of a prepared loop: numbers or addresses."""

    values: Array


class Packed(NamedTuple):
    """Arguments of one launch: their bytes, and the tables whose addresses are still missing.

    tables: (position in words of eight bytes, table).
    kept:   the arguments, whose arrays live until the launch has been started.
    """

    data: bytes
    tables: Sequence[tuple[int, Table]]
    kept: Sequence[object]


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

    __slots__ = ("_dtypes", "_flags", "_kernel", "_layout", "_names", "_pointers", "offsets",
                 "size")  # fmt: skip

    def __init__(self, kernel: str, parameters: Sequence[KernelParameter], real: DType) -> None:
        self._kernel = kernel
        self._names = [parameter.name for parameter in parameters]
        self._dtypes: list[DType] = []
        self.offsets: list[int] = []
        self._flags: list[int] = []
        self._pointers: list[tuple[int, int, DType | None]] = []
        self.size = 0
        for position, parameter in enumerate(parameters):
            scalar = real.type if parameter.type == "REAL" else SCALARS.get(parameter.type)
            if scalar is None and not parameter.is_pointer:
                raise DtypeError(f"{self._where(position)} is of type {parameter.type}, no number")
            found = None if scalar is None else np.dtype(scalar)
            dtype = POINTER if parameter.is_pointer or found is None else found
            offset = -(-self.size // dtype.itemsize) * dtype.itemsize
            if parameter.is_pointer:
                self._pointers.append((position, offset // POINTER.itemsize, found))
            elif dtype == np.bool_:
                self._flags.append(position)
            self._dtypes.append(dtype)
            self.offsets.append(offset)
            self.size = offset + dtype.itemsize
        self._layout = struct.Struct("@" + "".join([dtype.char for dtype in self._dtypes]))

    def pack(self, args: Arguments, stage: Stage) -> Packed:
        """Pack the arguments of a launch; see `Kernels.launch` for what they are.

        Raises:
            DtypeError: an array or number is not what the parameter takes.
            ShapeError: an array is not C-contiguous, or the number of arguments is wrong.
            OverflowError: an integer does not fit its parameter.
        """
        if len(args) != len(self._names):
            raise ShapeError(f"{self._kernel} takes {len(self._names)} arguments, not {len(args)}")
        values: list[Any] = list(args)
        tables = []
        for position, word, dtype in self._pointers:
            value = values[position]
            if type(value) is int:
                continue
            if isinstance(value, np.ndarray):
                tables.append((word, stage(value, dtype or BYTES)))
                value = None
            values[position] = 0 if value is None else self._address(position, value, dtype)
        for position in self._flags:
            values[position] = self._integer(position, values[position])
        try:
            data = self._layout.pack(*values)
        except (struct.error, OverflowError):
            data = self._layout.pack(*map(self._cast, range(len(values)), values))
        return Packed(data, tables, args)

    def pack_steps(
        self, args: Sequence[Argument | PerStep], steps: int, stage: Stage
    ) -> tuple[Array, Sequence[tuple[int, Table]]]:
        """Pack the arguments of `steps` launches.

        Returns:
            rows of words, one for each step, as `header` wants them; and the tables, placed as in
            `Packed`.
        """
        varying = [(k, arg.values) for k, arg in enumerate(args) if isinstance(arg, PerStep)]
        packed = self.pack([0 if isinstance(arg, PerStep) else arg for arg in args], stage)
        words = self.room(steps)
        room = words.view(np.uint8)[:, HEADER_WORDS * POINTER.itemsize :]
        room[:, : self.size] = np.frombuffer(packed.data, np.uint8)
        for k, values in varying:
            first, dtype = self.offsets[k], self._dtypes[k]
            column = room[:, first : first + dtype.itemsize].view(dtype)[:, 0]
            column[...] = values
            if dtype.kind != "f" and (column != values).any():
                raise OverflowError(f"{self._where(k)}: a step's value does not fit {dtype}")
        return words, packed.tables

    def room(self, launches: int) -> Array:
        """Rows of words: a header, which says where the arguments are, and room for them.

        The address of a row is what the driver wants as `extra`.
        """
        words = np.zeros((launches, HEADER_WORDS + -(-self.size // POINTER.itemsize)), POINTER)
        rows = row_addresses(words)
        words[:, 0], words[:, 1] = BUFFER_POINTER, rows + HEADER_WORDS * POINTER.itemsize
        words[:, 2], words[:, 3] = BUFFER_SIZE, rows + (HEADER_WORDS - 1) * POINTER.itemsize
        words[:, 4], words[:, 5] = END, self.size
        return words

    def _where(self, position: int) -> str:
        return f"{self._kernel}: argument {self._names[position]!r}"

    def _address(self, position: int, value: Any, dtype: DType | None) -> int:
        if isinstance(value, int):
            return value
        given = getattr(value, "dtype", None)
        if given is None:
            raise DtypeError(f"{self._where(position)} is a pointer, not {value!r}")
        if dtype is not None and given != dtype:
            raise DtypeError(f"{self._where(position)} points to {dtype}, not {given}")
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
    """The addresses of the rows of a contiguous array of words."""
    first = np.uint64(words.ctypes.data)
    return first + np.arange(len(words), dtype=POINTER) * np.uint64(words.strides[0])
