"""The C compiler of this machine, its flags, and what a compiled file depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dynbatch.errors import BackendError
from dynbatch.kernels.c.runtime import cache as kept
from dynbatch.kernels.c.runtime import source

FLAGS = (
    "-O2", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden",
    # Sums of products in one rounding; nothing that changes what NaN and infinity give.
    "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-Wno-psabi",  # vectors are passed to static functions only
)  # fmt: skip
# More flags, for those who work on the kernels: a sanitizer's, or "-g".
VARIABLE = "DYNBATCH_CFLAGS"
# Whether C is used: "0" for not at all, "wheel" for without a compiler.
NATIVE = "DYNBATCH_NATIVE"
# Seconds until a compiler that does not end is given up.
PATIENCE = 120


class Compiler(NamedTuple):
    """A command that compiles C.

    command:  the program and what it is always given.
    identity: path, size and date of the program: another compiler, another identity.
    """

    command: tuple[str, ...]
    identity: str

    def compile(self, text: str, target: Path, header: Path | None = None) -> None:
        """Compile a source to a shared library.

        Args:
            header: what `precompile` has made; left out if the compiler does not take it.

        Raises:
            BackendError: the compiler does not run or refuses the source.
        """
        includes = [] if header is None else ["-include", str(header)]
        told = self._run([*includes, "-x", "c", "-", "-o", str(target), "-lm"], text)
        if told and header is not None:
            self.compile(text, target)
        elif told:
            raise BackendError("\n".join([f"{shlex.join(self.command)} fails:", *told[:8]]))

    def precompile(self, folder: Path) -> Path | None:
        """Compile the system's header of vectors in a folder; None if the compiler refuses.

        A source is half of the time spent on this header: 0.16 s.
        """
        header = folder / "system.h"
        header.write_text(source.read(header.name), encoding="utf-8")
        told = self._run(["-x", "c-header", str(header), "-o", f"{header}.gch"], "")
        return None if told else header

    def _run(self, arguments: Sequence[str], text: str) -> list[str]:
        """The compiler's message where it refuses; nothing where it is content."""
        command = [*self.command, *flags(), *arguments]
        # Where there is no home to write to, zig would wait for its cache for ever.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(kept.folder() / "zig"), **os.environ}
        try:
            result = subprocess.run(
                command, input=text, capture_output=True, encoding="utf-8", errors="replace",
                timeout=PATIENCE, check=False, env=environment,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendError(f"the C compiler {self.command[0]} does not run: {error}") from None
        told = (result.stderr or result.stdout).strip().splitlines()
        return (told or ["it says nothing"]) if result.returncode else []


@cache
def compiler() -> Compiler | None:
    """The first of `$CC`, `cc`, `gcc`, `clang` and the package `ziglang`; None if there is none, or
    `DYNBATCH_NATIVE=wheel` keeps to what the wheel brings."""
    if os.environ.get(NATIVE) == "wheel":
        return None
    for command in _candidates():
        program = shutil.which(command[0])
        if program is None:
            continue
        status = Path(program).resolve().stat()
        identity = f"{command} {Path(program).resolve()} {status.st_size} {status.st_mtime_ns}"
        return Compiler((program, *command[1:]), identity)
    return None


def _candidates() -> Iterator[tuple[str, ...]]:
    wanted = os.environ.get("CC", "").strip()
    if wanted:  # a path with spaces or backslashes is taken as it stands
        yield (wanted,) if shutil.which(wanted) else tuple(shlex.split(wanted))
    if os.name == "posix":
        yield from [("cc",), ("gcc",), ("clang",)]
        if importlib.util.find_spec("ziglang") is not None:
            yield (sys.executable, "-m", "ziglang", "cc")


def flags() -> list[str]:
    """The compiler's flags; it may use all instructions of this processor."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    native = "-march=native" if is_x86 else "-mcpu=native"
    return [*FLAGS, native, *shlex.split(os.environ.get(VARIABLE, ""))]


@cache
def processor() -> str:
    """The instructions of the processor, which compiled code depends on, not its name alone."""
    parts = [sys.platform, platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            parts += sorted({line for line in file if line.startswith(("flags", "Features"))})
    except OSError:
        pass
    return "\n".join(parts)


def key_of(text: str, compiler: Compiler) -> str:
    """A name for what this compiler makes of a source on this machine."""
    parts = [text, compiler.identity, *flags(), processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
