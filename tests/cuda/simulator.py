"""Run CUDA kernels on the CPU: g++ makes a library of a source text, ctypes launches its kernels.

The kernels' text is left as it is but for dynamic shared memory; `shim/` supplies what CUDA does.
With `checked=True` the kernels also report every access to the race and memory checker.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.cache import built

SHIM = Path(__file__).with_name("shim")
HEADER = "cuda_cpu_shim.h"
KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)')
DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
SIZES = {"f": np.floating, "i": np.signedinteger, "u": np.unsignedinteger, "b": np.bool_}
# A function-local static of a template, as shared memory becomes, is else one object for all
# libraries of the process. No contraction: a run gives the same bits on every x86-64.
COMMON = ["-std=c++17", "-fPIC", "-fno-gnu-unique", "-ffp-contract=off", "-w"]
# As a GPU's compiler has it: GCC fuses from -O2 on.
CONTRACTED = ["-ffp-contract=fast", "-mfma", "-O2"]
PLAIN = ["-O0"]  # compiles in half the time of -O2, and the tests' arrays are small
RUNTIME = ["-O2"]  # the checker sees every access: it is built once and runs long
CHECKED = ["-O1", "-g1", "-gdwarf-4", "-fsanitize=thread"]  # of debugging, lines alone
# ctypes lets other threads run during a call, and the scheduler's state is global.
_one_at_a_time = threading.Lock()
COUNTER = re.compile(r"\[pc 0x([0-9a-f]+)\]")
# A line of `nm` on a variable within a function: its size, and the function's name with its length.
STATIC = re.compile(r"^\w+ (\w+) [bBdDuV] _ZZ(\d+)(\w+)", re.MULTILINE)


class KernelFault(RuntimeError):
    """A fault that a device would not forgive: where, which block, which thread."""


class LaunchConfiguration(ctypes.Structure):
    """`shim::Launch` in scheduler.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("check", ctypes.c_uint),
    )


def missing() -> str | None:
    """The reason that kernels cannot be run here, or None."""
    if platform.machine() != "x86_64":
        return f"the fiber switch is written for x86_64, this is {platform.machine()}"
    if shutil.which("g++") is None:
        return "g++ is not installed (apt-get install g++)"
    return None


@cache
def can_fuse() -> bool:
    """Whether the processor has fused multiply-adds."""
    return " fma " in Path("/proc/cpuinfo").read_text()


class Program:
    """The kernels of one source text.

    Args:
        text:    CUDA C++; kernels are `extern "C" __global__ void NAME(...)`.
        defines: compiler options such as "-DREAL=float".
        checked: watch for races, accesses out of bounds and reads of unwritten shared memory.
        contracted: fuse multiplications and additions, where the processor can.

    Attributes:
        parameters: for each kernel, each parameter as `describe_parameters` in the shim writes it.
    """

    def __init__(
        self,
        text: str,
        defines: Sequence[str] = (),
        checked: bool = False,
        contracted: bool = False,
    ) -> None:
        self.checked = checked
        self._runtime = _runtime()
        names = KERNEL.findall(text)
        given = CHECKED if checked else PLAIN
        if contracted and can_fuse():
            given = [*given, *CONTRACTED]
        self._library_path = _build_kernels(text, names, [*COMMON, *given], defines)
        with _one_at_a_time:  # what checked code reads is taken for a read of the kernel that runs
            self._library = ctypes.CDLL(str(self._library_path))
            self.parameters = {name: self._describe(name) for name in names}

    def _describe(self, name: str) -> list[str]:
        buffer = ctypes.create_string_buffer(4096)
        getattr(self._library, f"shim_describe_{name}")(buffer)
        return buffer.value.decode().split(",")[:-1]

    def static_shared_bytes(self, name: str) -> int:
        """Static shared memory of a kernel, and of the functions of its text that may be in it.

        A compiler for a device leaves out the functions that the kernel does not call.
        """
        apart = self.parameters.keys() - {name}
        symbols = _static_symbols(self._library_path)
        return sum([size for function, size in symbols if function not in apart])

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        values: Sequence[Any],
        *,
        shared_bytes: int = 0,
        order: int = 0,
        buffers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Run a kernel to its end.

        Args:
            values:  for each parameter a NumPy array to point to, or a NumPy scalar, or a struct as
                an array without dimensions. A pointer may also be an np.uint64.
            order:   in which order threads run: 0 forward, 1 backward, else a seed.
            buffers: (first, end) addresses that may be touched besides the arrays in `values`.

        Raises:
            TypeError: a value is not what the parameter takes.
            KernelFault: the kernel or its configuration is faulty.
        """
        parameters = self.parameters[name]
        if len(values) != len(parameters):
            raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(values)}")
        packed = [
            _pack(f"{name}: argument {i} is {parameter}", parameter, value)
            for i, (parameter, value) in enumerate(zip(parameters, values, strict=True))
        ]
        pointers = (ctypes.c_void_p * len(packed))(*[value.ctypes.data for value in packed])
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        configuration = LaunchConfiguration(
            (ctypes.c_uint * 3)(*_three(grid)),
            (ctypes.c_uint * 3)(*_three(block)),
            shared_bytes,
            order,
            self.checked,
        )
        function = getattr(self._library, f"shim_launch_{name}")
        known = [*buffers, *[_extent(a) for a in [*arrays, *packed]]] if self.checked else []
        bounds = np.array(known, np.uint64)
        with _one_at_a_time:
            if self.checked:
                self._runtime.shim_set_buffers(ctypes.c_void_p(bounds.ctypes.data), len(bounds))
            if function(ctypes.byref(configuration), pointers):
                message = self._runtime.shim_message().decode()
                raise KernelFault(f"{name}: {self._with_lines(message)}")

    def _with_lines(self, message: str) -> str:
        """Program counters as FILE:LINE."""

        def line(match: re.Match[str]) -> str:
            address = hex(int(match[1], 16) - 1)  # of the call, not of what follows it
            command = ["addr2line", "-e", str(self._library_path), address]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return "at " + found.split()[0].rpartition("/")[2]

        return COUNTER.sub(line, message)


@cache
def _static_symbols(library: Path) -> list[tuple[str, int]]:
    """Shared memory, which is static here: (function that has it, bytes) of each array."""
    command = ["nm", "--print-size", "--defined-only", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [(rest[: int(length)], int(size, 16)) for size, length, rest in STATIC.findall(text)]


def _pack(where: str, parameter: str, value: Any) -> np.ndarray[Any, Any]:
    """The bytes that the launch passes for one argument."""
    if parameter[0] == "*":
        if not isinstance(value, np.ndarray):
            if not isinstance(value, np.uint64):
                raise TypeError(f"{where}, a pointer, not {value!r}")
            return np.array(value)
        if not _is(value.dtype, parameter[1:]):
            raise TypeError(f"{where}, not an array of {value.dtype}")
        return np.array(value.ctypes.data, np.uint64)
    value = np.array(value)
    if value.ndim or not _is(value.dtype, parameter):
        raise TypeError(f"{where}, not {value!r} of {value.dtype}")
    return value


def _is(dtype: np.dtype[Any], described: str) -> bool:
    """Whether a NumPy dtype is the type that the compiler described, e.g. "f4"."""
    if dtype.itemsize != int(described[1:]):
        return False
    return dtype.kind == "V" if described[0] == "V" else np.issubdtype(dtype, SIZES[described[0]])


def _extent(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return array.ctypes.data, array.ctypes.data + array.nbytes


def _three(extents: Sequence[int]) -> tuple[int, ...]:
    return (*extents, 1, 1)[:3]


def _build_kernels(
    text: str, names: list[str], options: Sequence[str], defines: Sequence[str]
) -> Path:
    body = DYNAMIC_SHARED.sub(r"\1* \2 = (\1*)shim::dynamic_shared;", text)
    calls = "".join(
        f'extern "C" int shim_launch_{name}(const shim::Launch* launch, void** arguments) '
        f"{{ return shim::launch(launch, &{name}, arguments); }}\n"
        f'extern "C" void shim_describe_{name}(char* out) '
        f"{{ shim::describe_parameters(&{name}, out); }}\n"
        for name in names
    )
    unit = f'#include "{HEADER}"\n#line 1 "kernel.cu"\n{body}\n#line 1 "calls"\n{calls}'
    folders = [_precompiled(tuple(options)).parent, SHIM]
    # What it needs of C++ the runtime has loaded: linking then takes a third of the time.
    link = ["-Wl,-Bsymbolic", "-nodefaultlibs"]
    return _library("kernels", unit, [*options, *defines], folders, link, _text("h"))


@cache
def _precompiled(options: tuple[str, ...]) -> Path:
    """The header of all kernels as these options read it: a third of the work for most of them."""
    command = ["g++", *options, "-x", "c++-header", str(SHIM / HEADER)]
    return built(
        f"header-{{}}/{HEADER}.gch",
        [_text("h"), *options],
        lambda out, work: _compile([*command, "-o", str(out)]),
    )


@cache
def _runtime() -> ctypes.CDLL:
    """The scheduler and the checker, whose symbols the kernels' libraries find globally."""
    unit = "".join(f'#include "{name}"\n' for name in ("runtime.cpp", "racecheck.cpp"))
    path = _library("runtime", unit, [*COMMON, *RUNTIME], [SHIM], [], _text("h", "cpp"))
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.shim_message.restype = ctypes.c_char_p
    return library


@cache
def _text(*suffixes: str) -> str:
    """All files of the shim whose names end so."""
    paths = [path for suffix in suffixes for path in sorted(SHIM.glob(f"*.{suffix}"))]
    return "".join(path.read_text() for path in paths)


def _library(
    kind: str,
    unit: str,
    options: Sequence[str],
    folders: Sequence[Path],
    link: Sequence[str],
    included: str,
) -> Path:
    """The library made of one translation unit, and of what it includes from these folders."""

    def make(out: Path, work: Path) -> None:
        cpp, parts = work / "unit.cpp", work / "unit.o"
        cpp.write_text(unit)
        where = [f"-I{folder}" for folder in folders]
        _compile(["g++", *options, *where, "-c", str(cpp), "-o", str(parts)])
        # Linked without -fsanitize: its hooks are ours, in the runtime.
        _compile(["g++", "-shared", *link, str(parts), "-o", str(out)])

    return built(f"{kind}-{{}}.so", [unit, included, *options, *link], make)


def _compile(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SyntaxError(result.stderr)
