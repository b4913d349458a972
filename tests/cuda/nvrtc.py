"""Compile CUDA C++ with NVRTC: a real device binary, with no GPU, driver, CuPy or header.

Needs only the wheel nvidia-cuda-nvrtc, which brings one library. ptxas runs inside it, so what it
says about registers, spills and shared memory is what a device will get. CUDA 13 compiles for
Turing and newer; for older GPUs the compiler of CUDA 12 is looked for in a folder of its own:

    .venv/bin/pip install --target .venv/nvrtc12 "nvidia-cuda-nvrtc-cu12==12.*"
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dynbatch.backend import LEAST_CAPABILITY
from tests.cuda.cache import built

CUDA_12 = Path(sys.prefix) / "nvrtc12"
_RESOURCES = re.compile(
    r"Function properties for (\w+)\n[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n[^\n]*Used (\d+) registers(?:[^\n]*? (\d+) bytes smem)?"
)

_DIVISION = re.compile(r"\b(?:div|rem)\.[su](?:32|64)\b")


class Resources(NamedTuple):
    """Resources of one kernel on one architecture; bytes and registers a thread, shared a block."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int


class CompileError(SyntaxError):
    """NVRTC's message on a source text."""


def missing(architecture: int = LEAST_CAPABILITY[13]) -> str | None:
    """The reason that nothing can be compiled for an architecture here, or None."""
    if _library_path(architecture):
        return None
    wanted = (
        "nvidia-cuda-nvrtc" if _is_new(architecture) else f"nvidia-cuda-nvrtc-cu12 in {CUDA_12}"
    )
    return f"{wanted} is not installed (pip install)"


def cupy_options(architecture: int, options: Sequence[str]) -> tuple[str, ...]:
    """CuPy's options for a `RawModule` with these options, but for folders of headers
    (cupy/cuda/compiler.py): sources here include nothing from outside."""
    added = ("-ftz=true", f"-arch=sm_{architecture}", "--device-as-default-execution-space")
    return (*options, *added)


def compile_kernels(
    text: str, name: str, architecture: int, options: Sequence[str] = ()
) -> dict[str, Resources]:
    """Compile to a device binary, unless that was done before; what each kernel takes.

    Args:
        text:         CUDA C++.
        name:         what messages call the text.
        architecture: e.g. 80 for sm_80.
        options:      those of the `RawModule`, e.g. "-DREAL=float".

    Raises:
        CompileError: the compiler refuses, also for too much shared memory.
    """
    given = ("--ptxas-options=-v", *cupy_options(architecture, ("-std=c++17", *options)))
    path = _library_path(architecture)
    assert path is not None
    made_of = [text, name, *given, path.name, str(path.stat().st_size)]

    def make(out: Path, _: Path) -> None:
        out.write_text(compiled_log(text, name, architecture, given))

    return {
        kernel: Resources(int(registers), int(stack), int(stores) + int(loads), int(shared or 0))
        for kernel, stack, stores, loads, registers, shared in _RESOURCES.findall(
            built("nvrtc-{}.txt", made_of, make).read_text()
        )
    }


def divisions(text: str, name: str, options: Sequence[str] = ()) -> dict[str, int]:
    """The number of divisions of integers, and remainders, in each kernel's PTX."""
    entries = re.split(r"\.visible \.entry ", ptx(text, name, options))[1:]
    return {entry.partition("(")[0]: len(_DIVISION.findall(entry)) for entry in entries}


def ptx(text: str, name: str, options: Sequence[str] = ()) -> str:
    """The PTX of a text, before the compiler knows the GPU's instructions."""
    given = ("-std=c++17", *options, "-arch=compute_90", "--device-as-default-execution-space")
    with _compiled(text, name, 90, given) as (library, program):
        return _text_of(library, program, "PTX")


def compiled_log(text: str, name: str, architecture: int, given: Sequence[str]) -> str:
    """The compiler's messages on a text that it accepts."""
    with _compiled(text, name, architecture, given) as (library, program):
        return _text_of(library, program, "ProgramLog")


@contextmanager
def _compiled(
    text: str, name: str, architecture: int, given: Sequence[str]
) -> Iterator[tuple[ctypes.CDLL, Any]]:
    """The compiler, and its program for a text that it accepts."""
    library, program = _library(_is_new(architecture)), ctypes.c_void_p()
    _require(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), 0, None, None
        ),
    )
    try:
        array = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
        if library.nvrtcCompileProgram(program, len(given), array):
            log = _text_of(library, program, "ProgramLog")
            raise CompileError(f"{name} for sm_{architecture}:\n{log}")
        yield library, program
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text_of(library: ctypes.CDLL, program: Any, what: str) -> str:
    """The program's "ProgramLog" or "PTX"."""
    size = ctypes.c_size_t()
    _require(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _require(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.value.decode()


def _require(library: ctypes.CDLL, result: int) -> None:
    if result:
        raise RuntimeError(library.nvrtcGetErrorString(result).decode())


def _is_new(architecture: int) -> bool:
    """Whether the compiler of CUDA 13 knows it."""
    return architecture >= LEAST_CAPABILITY[13]


@cache
def _library(is_new: bool) -> ctypes.CDLL:
    path = _library_path(LEAST_CAPABILITY[13 if is_new else 12])
    assert path is not None
    for builtins in path.parent.glob("libnvrtc-builtins.so*"):
        if ".alt." not in builtins.name:  # not found by itself: the wheel has no rpath
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@cache
def _library_path(architecture: int) -> Path | None:
    if not _is_new(architecture):
        return next(CUDA_12.glob("nvidia/*/lib/libnvrtc.so.12"), None)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("cu*/lib/libnvrtc.so.13")):
            return path
    return None
