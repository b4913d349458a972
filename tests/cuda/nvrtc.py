"""Compile CUDA C++ with NVRTC: a real device binary, with no GPU, driver, CuPy or header.

Needs only the wheel nvidia-cuda-nvrtc, which brings one library. ptxas runs inside it, so what it
says about registers, spills and shared memory is what a device will get.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# What CuPy adds to every compilation (cupy/cuda/compiler.py).
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
_RESOURCES = re.compile(
    r"Function properties for (\w+)\n[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n[^\n]*Used (\d+) registers(?:[^\n]*? (\d+) bytes smem)?"
)


class Resources(NamedTuple):
    """What one kernel takes on one architecture; bytes and registers a thread, shared a block."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int


class CompileError(SyntaxError):
    """What NVRTC says about a source text."""


def missing() -> str | None:
    """Why nothing can be compiled here, or None."""
    return None if _library_path() else "nvidia-cuda-nvrtc is not installed (pip install)"


def compile_kernels(
    text: str, name: str, architecture: int, options: Sequence[str] = ()
) -> dict[str, Resources]:
    """Compile to a device binary; what each kernel takes.

    Args:
        text:         CUDA C++.
        name:         what messages call the text.
        architecture: e.g. 80 for sm_80.
        options:      e.g. "-DREAL=float".

    Raises:
        CompileError: the compiler refuses, also for too much shared memory.
    """
    library, program = _library(), ctypes.c_void_p()
    _require(
        library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), 0, None, None
        )
    )
    try:
        given = (
            f"--gpu-architecture=sm_{architecture}",
            "--ptxas-options=-v",
            "-std=c++17",
            *CUPY_OPTIONS,
            *options,
        )
        array = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
        failed = library.nvrtcCompileProgram(program, len(given), array)
        log = _log(program)
        if failed:
            raise CompileError(f"{name} for sm_{architecture}:\n{log}")
        return {
            kernel: Resources(
                int(registers), int(stack), int(stores) + int(loads), int(shared or 0)
            )
            for kernel, stack, stores, loads, registers, shared in _RESOURCES.findall(log)
        }
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(program: Any) -> str:
    size = ctypes.c_size_t()
    _require(_library().nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _require(_library().nvrtcGetProgramLog(program, buffer))
    return buffer.value.decode()


def _require(result: int) -> None:
    if result:
        raise RuntimeError(_library().nvrtcGetErrorString(result).decode())


@cache
def _library() -> ctypes.CDLL:
    path = _library_path()
    assert path is not None
    for builtins in path.parent.glob("libnvrtc-builtins.so*"):
        if ".alt." not in builtins.name:  # not found by itself: the wheel has no rpath
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@cache
def _library_path() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("c*/lib/libnvrtc.so.*"), reverse=True):
            if ".alt." not in path.name:
                return path
    return None
