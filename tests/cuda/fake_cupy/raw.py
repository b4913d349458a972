"""`RawModule`, `RawKernel` and the driver's launch of the stand-in: the rules of both.

On a device most of these mistakes give wrong numbers without a word, so they are errors here.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from functools import cache
from typing import Any

import numpy as np

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.packing import SCALARS
from tests.cuda.fake_cupy import memory
from tests.cuda.fake_cupy.stream import settings, stream_of
from tests.cuda.simulator import Program

# Of a block, static and dynamic: without asking, and at most, on sm_90.
DEFAULT_SHARED_BYTES, MOST_SHARED_BYTES = 48 * 1024, 232448
# Keys of the driver in `extra`.
END, BUFFER_POINTER, BUFFER_SIZE = 0, 1, 2
MOST_KEYS = 2

_functions: weakref.WeakValueDictionary[int, RawKernel] = weakref.WeakValueDictionary()
_new_function = itertools.count(1 << 44, 64)


@cache
def _program(code: str, defines: tuple[str, ...], checked: bool, contracted: bool) -> Program:
    program = Program(code, defines, checked, contracted)
    for name, parameters in source.signatures(code).items():
        _require_signature(name, parameters, program.parameters[name], defines)
    return program


def _require_signature(
    name: str,
    parsed: tuple[source.KernelParameter, ...],
    compiled: list[str],
    defines: tuple[str, ...],
) -> None:
    """Arguments are packed by what dynbatch parsed: it must be what the compiler has understood."""
    real = next((d.partition("=")[2] for d in defines if d.startswith("-DREAL=")), "")
    if len(parsed) != len(compiled):
        raise TypeError(f"{name} takes {len(compiled)} arguments, {len(parsed)} were parsed")
    for parameter, described in zip(parsed, compiled, strict=True):
        scalar = SCALARS.get(real if parameter.type == "REAL" else parameter.type)
        if parameter.is_pointer != described.startswith("*"):
            raise TypeError(f"{name}: {parameter} was compiled as {described}")
        if scalar is not None and described.lstrip("*") != _described(np.dtype(scalar)):
            raise TypeError(f"{name}: {parameter} was compiled as {described}")


def _described(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{dtype.itemsize}"


class RawModule:
    """`cupy.RawModule` of a source text. It is compiled when a kernel is fetched."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        if not isinstance(options, tuple):
            raise TypeError("options is a tuple")
        self.code, self.options = code, options
        self._defines = tuple([option for option in options if option.startswith("-D")])

    def program(self) -> Program:
        return _program(self.code, self._defines, settings.checked, settings.contracted)

    def get_function(self, name: str) -> RawKernel:
        if name not in self.program().parameters:
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return RawKernel(self, name)


class RawKernel:
    """`cupy.RawKernel`, made by `RawModule.get_function`."""

    def __init__(self, module: RawModule, name: str) -> None:
        self.module, self.name = module, name
        self._most_dynamic: int | None = None
        self.kernel = Function(next(_new_function))
        _functions[self.kernel.ptr] = self

    @property
    def shared_size_bytes(self) -> int:
        return self.module.program().static_shared_bytes(self.name)

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """By default what the static shared memory leaves of that which needs no asking."""
        if self._most_dynamic is None:
            return DEFAULT_SHARED_BYTES - self.shared_size_bytes
        return self._most_dynamic

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        if size + self.shared_size_bytes > MOST_SHARED_BYTES:
            raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: {self.name}: {size} bytes are too many")
        self._most_dynamic = size


class Function:
    """`cupy.cuda.function.Function`."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def launchKernel(
    f: int, grid_dim_x: int, grid_dim_y: int, grid_dim_z: int,
    block_dim_x: int, block_dim_y: int, block_dim_z: int,
    shared_mem_bytes: int, stream: int, kernel_params: int, extra: int,
) -> None:  # fmt: skip
    """`cupy.cuda.driver.launchKernel`, with arguments packed in a buffer that `extra` names."""
    kernel = _functions.get(f)
    if kernel is None:
        raise RuntimeError(f"CUDA_ERROR_INVALID_HANDLE: no function {f!r}")
    grid = [grid_dim_x, grid_dim_y, grid_dim_z]
    block = [block_dim_x, block_dim_y, block_dim_z]
    if min(*grid, *block) < 1:
        raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: {kernel.name}: {grid} blocks of {block}")
    if shared_mem_bytes and shared_mem_bytes > kernel.max_dynamic_shared_size_bytes:
        raise RuntimeError(
            f"{kernel.name}: {shared_mem_bytes} bytes of dynamic shared memory, "
            f"max_dynamic_shared_size_bytes is {kernel.max_dynamic_shared_size_bytes}"
        )
    if kernel_params:
        raise NotImplementedError("the stand-in takes packed arguments")
    program = kernel.module.program()
    values = _arguments(kernel.name, program.parameters[kernel.name], _packed(extra))
    order = settings.order
    stream_of(stream).enqueue(
        lambda: program.launch(
            kernel.name,
            grid,
            block,
            values,
            shared_bytes=shared_mem_bytes,
            order=order,
            buffers=memory.buffers() if program.checked else (),
        ),
        is_kernel=True,
    )


def _packed(extra: int) -> bytes:
    """The bytes that `extra` names, as they are now: the driver copies them too."""
    found = {}
    words = (ctypes.c_uint64 * (2 * MOST_KEYS + 1)).from_address(extra)
    for k in range(0, 2 * MOST_KEYS, 2):
        if words[k] == END:
            break
        found[words[k]] = words[k + 1]
    if found.keys() != {BUFFER_POINTER, BUFFER_SIZE} or words[2 * MOST_KEYS] != END:
        raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: extra holds {list(words)}")
    size = ctypes.c_size_t.from_address(found[BUFFER_SIZE]).value
    return ctypes.string_at(found[BUFFER_POINTER], size)


def _arguments(name: str, parameters: list[str], data: bytes) -> list[Any]:
    """The values in packed arguments, each aligned to its own size."""
    values: list[Any] = []
    end = 0
    for number, parameter in enumerate(parameters):
        where = f"{name}: argument {number} is {parameter}"
        dtype = np.dtype(np.uint64 if parameter[0] == "*" else parameter)
        start = -(-end // dtype.itemsize) * dtype.itemsize
        end = start + dtype.itemsize
        if end > len(data):
            raise TypeError(f"{where}; {len(data)} bytes of arguments end before it")
        value = np.frombuffer(data, dtype, 1, start)[0]
        if parameter[0] == "*" and value:
            memory.require_device(int(value))
            memory.require_current(int(value))
        if parameter[0] == "b" and data[start] > 1:
            raise TypeError(f"{where}, not {data[start]}")
        values.append(value)
    if end != len(data):
        raise TypeError(f"{name}: {len(data)} bytes of arguments, not {end}")
    return values
