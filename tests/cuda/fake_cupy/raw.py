"""`RawModule` and `RawKernel` of the stand-in: CuPy's argument rules in front of the simulator.

On a device most of these mistakes give wrong numbers without a word, so they are errors here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.cuda.fake_cupy import memory
from tests.cuda.fake_cupy.array import ndarray
from tests.cuda.fake_cupy.stream import Stream, get_current_stream, settings
from tests.cuda.simulator import Program

DEFAULT_SHARED_BYTES = 48 * 1024


@cache
def _program(code: str, defines: tuple[str, ...], checked: bool) -> Program:
    return Program(code, defines, checked)


class RawModule:
    """`cupy.RawModule` of a source text. It is compiled when a kernel is fetched."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        if not isinstance(options, tuple):
            raise TypeError("options is a tuple")
        self.code = code
        self._defines = tuple([option for option in options if option.startswith("-D")])

    def program(self) -> Program:
        return _program(self.code, self._defines, settings.checked)

    def get_function(self, name: str) -> RawKernel:
        if name not in self.program().parameters:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return RawKernel(self, name)


class RawKernel:
    """`cupy.RawKernel`, made by `RawModule.get_function`."""

    def __init__(self, module: RawModule, name: str) -> None:
        self._module, self.name = module, name
        self.max_dynamic_shared_size_bytes = DEFAULT_SHARED_BYTES

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:
        if not (isinstance(grid, tuple) and isinstance(block, tuple)):
            raise TypeError("grid and block are tuples")
        program = self._module.program()
        parameters = program.parameters[self.name]
        if len(args) != len(parameters):
            raise TypeError(f"{self.name} takes {len(parameters)} arguments, not {len(args)}")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise RuntimeError(
                f"{self.name}: {shared_mem} bytes of dynamic shared memory, "
                f"max_dynamic_shared_size_bytes is {self.max_dynamic_shared_size_bytes}"
            )
        values = [
            _argument(f"{self.name}: argument {i} is {parameter}", parameter, value)
            for i, (parameter, value) in enumerate(zip(parameters, args, strict=True))
        ]
        order = settings.order
        (stream or get_current_stream()).enqueue(
            lambda: program.launch(
                self.name,
                _at_least_one(grid),
                _at_least_one(block),
                values,
                shared_bytes=shared_mem,
                order=order,
                buffers=memory.buffers(),
            )
        )


def _at_least_one(extents: tuple[int, ...]) -> list[int]:
    """What CuPy makes of a grid or block, silently also of an empty one."""
    return [max(1, extent) for extent in (*extents, 1, 1)[:3]]


def _argument(where: str, parameter: str, value: Any) -> Any:
    """What CuPy passes for `value`; the simulator compares it with the compiled parameter."""
    if value is None:
        raise TypeError(f"{where}; None passes no argument at all. Pass 0 for NULL")
    if isinstance(value, np.ndarray) and (value.ndim or value.size != 1):
        raise TypeError(f"{where}, not a host array")
    if parameter[0] == "*":
        return _address(where, parameter, value)
    if isinstance(value, ndarray | memory.MemoryPointer):
        raise TypeError(f"{where}, not {value!r}")
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value)
    return np.float64(value) if type(value) is float else value


def _address(where: str, parameter: str, value: Any) -> np.uint64:
    if isinstance(value, ndarray):
        if not value.flags.c_contiguous:
            raise TypeError(f"{where}; the array is not contiguous")
        kind, size = parameter[1], int(parameter[2:])
        if value.dtype.itemsize != size or (value.dtype.kind != kind and kind != "V"):
            raise TypeError(f"{where}, not an array of {value.dtype}")
        return np.uint64(value.data.ptr)
    if isinstance(value, memory.MemoryPointer):
        return np.uint64(value.ptr)
    if isinstance(value, int) or (isinstance(value, np.generic) and value.itemsize == 8):
        memory.require_device(int(value))
        memory.require_current(int(value))
        return np.uint64(value)
    raise TypeError(f"{where}, not {value!r}")
