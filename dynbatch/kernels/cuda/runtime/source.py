"""CUDA source as package data: `NAME.cu` preceded by its headers, and kernel signatures.

The text is joined here, #includes too, because CuPy's disk cache is keyed by the text: a changed
header would go unnoticed. `#line` keeps compiler messages true. A kernel is compiled by itself,
without the others of its source: a program pays for what it launches, and what it compiled serves
every other that launches it too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

printed: dict[str, Callable[[], str]] = {}
"""Headers that are made when they are first included, by name."""

HEADERS = ("common.cuh", "unary.cuh", "pairs.cuh", "segments.cuh", "attention.cuh")
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)'
)
_BRACE = re.compile("[{}]")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
BLOCKS = """// The blocks that have work, which gridDim tells where no table does.
static __device__ __forceinline__ unsigned& blocks_of_step() {
    __shared__ unsigned blocks;
    return blocks;
}
"""
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__grid_constant__)\b")


class KernelParameter(NamedTuple):
    """One parameter of a kernel: `const REAL* x` is ("x", "REAL", True, True)."""

    name: str
    type: str
    is_pointer: bool
    is_read_only: bool = False


class CudaSource(NamedTuple):
    """A complete source text. Kernels are templates over REAL, the element type.

    name:    what the compiler calls it.
    kernels: the parameters of each, by its key: its name, and in a text of the user's own
        "NAME of SOURCE", so that no kernel is taken for another one of its name.
    origin:  file and line in which a text of the user's own begins.
    """

    name: str
    text: str
    kernels: dict[str, tuple[KernelParameter, ...]]
    origin: tuple[str, int] | None = None

    def in_users_lines(self, message: str) -> str:
        """A compiler's message, with the user's file and lines in place of those of the text."""
        assert self.origin is not None
        file, first = self.origin
        line = re.compile(rf"{re.escape(self.name)}(?:\((\d+)\)|:(\d+))")
        told = line.sub(lambda at: f"{file}:{first - 1 + int(at[1] or at[2])}", message)
        return told.replace(self.name, file)


def join(name: str, body: str) -> CudaSource:
    """The headers of every file, those that `body` includes, and `body`.

    Args:
        name: what compiler messages call the body, e.g. "softmax.cu".
        body: CUDA C++, also one generated at run time; its kernels are
            `extern "C" __global__ void NAME(...)`.
    """
    headers = "".join([_header(header) for header in HEADERS])

    def included(include: re.Match[str]) -> str:
        line = body.count("\n", 0, include.end()) + 1
        return f'{_header(include[1])}#line {line} "{name}"\n'

    text = _INCLUDE.sub(included, body)
    return CudaSource(name, f'{headers}#line 1 "{name}"\n{text}', signatures(body))


def own(text: str, origin: tuple[str, int]) -> CudaSource:
    """A text of the user's own, which stands by itself: its names are not those of our headers."""
    name = f"own_{hashlib.sha256(text.encode()).hexdigest()[:12]}.cu"
    kernels = {f"{kernel} of {name}": signature for kernel, signature in signatures(text).items()}
    return CudaSource(name, f'#line 1 "{name}"\n{text}', kernels, origin)


def is_own(key: str) -> bool:
    return " of " in key


def name_of(key: str) -> str:
    return key.partition(" ")[0]


def alone(given: CudaSource, key: str) -> str:
    """The text of one kernel, without the others and without comments; lines keep their numbers.

    A text of the user's own stays whole: its kernels may share what else it defines.
    """
    if given.origin is not None:
        return given.text
    text = _COMMENT.sub(_lines_of, given.text)
    parts, end = [], 0
    for other in _KERNEL.finditer(text):
        if other[1] != key:
            stop = _end_of_body(text, other.end())
            parts += [text[end : other.start()], "\n" * text.count("\n", other.start(), stop)]
            end = stop
    return "".join([*parts, text[end:]])


def _lines_of(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")


def _end_of_body(text: str, start: int) -> int:
    """The end of the first block from `start` on, behind its brace."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    raise ValueError(f"a kernel has no end: {text[start : start + 60]!r}")


def of_steps(given: CudaSource) -> CudaSource:
    """The kernels of a source with their arguments in a table, as NAME_of_step.

    A row has, from word `first` on, the number of blocks, and the arguments as they are packed:
    `place` is as in graphs.cu. Where the grid is larger, the other blocks have nothing to do, and a
    kernel that asks for the size of its grid is told the number of blocks.
    """
    wrappers = []
    for name, parameters in given.kernels.items():
        fields = [f"{p.type}{'*' if p.is_pointer else ''} {p.name};" for p in parameters]
        values = ", ".join([f"a.{parameter.name}" for parameter in parameters])
        bounds = re.search(rf"(__launch_bounds__\([^)]*\))\s*{name}\s*\(", given.text)
        wrappers.append(
            f"struct {name}_arguments {{ {' '.join(fields)} }};\n"
            f'extern "C" __global__ void {bounds[1] if bounds else ""} {name}_of_step('
            "const unsigned long long* place, int step, int first, int words) {\n"
            "    const unsigned long long* row =\n"
            "        (const unsigned long long*)place[0] + (place[1] + step) * words + first;\n"
            "    if (blockIdx.x >= row[0]) return;\n"
            "    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) blocks_of_step() = row[0];\n"
            "    __syncthreads();\n"
            f"    const {name}_arguments& a = *(const {name}_arguments*)(row + 1);\n"
            f"    {name}({values});\n}}"
        )
    text = _KERNEL.sub(r"static __device__ __forceinline__ void \1(\2)", given.text)
    text = text.replace("gridDim.x", "blocks_of_step()")
    body = "\n\n".join(wrappers)
    return CudaSource(f"steps of {given.name}", f"{BLOCKS}{text}\n\n{body}\n", signatures(body))


def _header(name: str) -> str:
    return f'#line 1 "{name}"\n{_read(name)}\n'


@cache
def read(name: str) -> CudaSource:
    """The source in the package file `name`, e.g. "softmax.cu"."""
    return join(name, _read(name))


@cache
def names() -> tuple[str, ...]:
    """The names of the `.cu` files, sorted."""
    return tuple(sorted(name for name in _files() if name.endswith(".cu")))


@cache
def home(kernel: str) -> CudaSource:
    """The source that defines `kernel`.

    Raises:
        LookupError: no file does.
    """
    for name in names():
        if kernel in read(name).kernels:
            return read(name)
    raise LookupError(f"no file of {', '.join(names())} defines a kernel {kernel!r}")


def signatures(text: str) -> dict[str, tuple[KernelParameter, ...]]:
    """The parameters of every `extern "C"` kernel in a CUDA text."""
    return {
        name: tuple(_parameter(p) for p in parameters.split(",") if p.strip())
        for name, parameters in _KERNEL.findall(_COMMENT.sub(" ", text))
    }


def _parameter(text: str) -> KernelParameter:
    words = _QUALIFIERS.sub(" ", text).replace("*", " * ").split()
    kinds = [word for word in words[:-1] if word != "*"]
    is_read_only = re.search(r"\bconst\b[^*]*\*", text) is not None
    return KernelParameter(words[-1], " ".join(kinds), "*" in words, is_read_only)


@cache
def _files() -> dict[str, Traversable]:
    """The CUDA files of `kernels/cuda/sources`, by their names, which are unique."""
    top = resources.files("dynbatch.kernels.cuda").joinpath("sources")
    folders = [top, *[entry for entry in top.iterdir() if entry.is_dir()]]
    files = [file for folder in folders for file in folder.iterdir()]
    return {file.name: file for file in files if file.name.endswith((".cu", ".cuh"))}


@cache
def _read(name: str) -> str:
    return printed[name]() if name in printed else _files()[name].read_text(encoding="utf-8")
