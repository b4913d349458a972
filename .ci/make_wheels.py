"""make_wheels.py FOLDER [PLATFORM ...]: wheels with compiled kernels, and the pure one.

One machine makes them all: zig compiles for other systems and processors. A platform's wheel is the
pure one with libraries of the fixed kernels, which serve where there is no C compiler. Of each
library is read, as it cannot be run here, for which processor and system it is, what it exports,
and what it needs. "here" is the platform of this machine.
"""

from __future__ import annotations

import os
import platform as machine
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from binaries import Binary, described

import dynbatch  # noqa: F401 - its modules print some of the sources
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.compiler import FLAGS
from dynbatch.kernels.c.runtime.library import ROUNDING, SCALARS, Unit
from dynbatch.kernels.c.runtime.shipped import BASE, INSTRUCTIONS, X86_LEVELS, file_name
from dynbatch.kernels.runtime.parallel import num_processors
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS

MOST_BYTES = 6_000_000
"""Of a wheel."""


class Platform(NamedTuple):
    """A platform of wheels: zig's name for the system, and its processors by level.

    system: what a library may ask for: the version of glibc or macOS that the wheel's tag names.
    """

    target: str
    processors: dict[str, str]
    system: tuple[int, ...] = ()


_X86 = {
    BASE: "x86_64", X86_LEVELS[3]: "x86_64_v3", X86_LEVELS[4]: "x86_64_v4",
    X86_LEVELS[5]: "x86_64_v4+avx512bf16",
}  # fmt: skip

PLATFORMS = {
    "manylinux2014_x86_64.manylinux_2_17_x86_64": Platform("x86_64-linux-gnu.2.17", _X86, (2, 17)),
    "manylinux2014_aarch64.manylinux_2_17_aarch64": Platform(
        "aarch64-linux-gnu.2.17", {BASE: "baseline"}, (2, 17)
    ),
    "macosx_11_0_arm64": Platform("aarch64-macos.11.0", {BASE: "apple_m1"}, (11, 0)),
    "macosx_11_0_x86_64": Platform("x86_64-macos.11.0", _X86, (11, 0)),
    "win_amd64": Platform("x86_64-windows-gnu", _X86),
}


NEEDS_START_UP = re.compile(r"\bpthread_")
"""What a source has that is set up by start-up code: threads."""

# Of these systems' own libraries, and of no others.
LIBRARIES = {
    "linux": ("libc.so.6", "libm.so.6", "ld-linux-"),
    "macos": ("/usr/lib/libSystem.B.dylib",),
    "windows": ("kernel32.dll", "api-ms-win-crt-"),
}


def units(platform: Platform, level: str) -> list[Unit]:
    """The units of a level, without those that are the same one level below."""
    if level == BASE and len(platform.processors) > 1:  # what tells the levels apart
        return [Unit.of(INSTRUCTIONS, source.read(INSTRUCTIONS), "float")]
    rounding = {"float": sorted(set(MANTISSA_BITS.values()) - {MANTISSA_BITS[FULL]}), "double": []}
    every = [
        (name, scalar, bits)
        for scalar in SCALARS.values()
        for name in source.names()
        for bits in [0, *(rounding[scalar] if name in ROUNDING else [])]
        if level != X86_LEVELS[5] or bits == MANTISSA_BITS["bfloat16"]
    ]
    return [Unit.of(name, source.read(name), scalar, bits) for name, scalar, bits in every]


def compile_units(platform: Platform, folder: Path) -> None:
    """Compile the libraries of all levels below a folder, and look into each."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", platform.target, *FLAGS, "-s"]
    ends = [] if "windows" in platform.target else ["-lm"]
    is_mac = "macos" in platform.target
    # zig keeps what it has made of a file with its date, but not of what it reads from a pipe.
    written = Path("build", "zig", platform.target)

    def run(level: str, *arguments: str | Path) -> None:
        run_command([*zig, f"-mcpu={platform.processors[level]}", *map(str, arguments)])

    def compile_one(job: tuple[str, Unit]) -> None:
        level, unit = job
        path = folder / level / file_name(*unit)
        text, part = [written / level / f"{path.stem}{end}" for end in (".c", ".o")]
        write(text, unit.text)
        run(level, "-include", text.with_name("system.h"), "-c", text, "-o", part)
        name = [f"-Wl,-install_name,@rpath/{path.name}"] if is_mac else []  # not this folder's
        # Of the lowest level: for each processor zig makes the system's own code anew, which for
        # Windows takes longer than all kernels.
        if bare and not NEEDS_START_UP.search(unit.text):
            run_command([*bare, f"-OUT:{path}", f"-IMPLIB:{part.with_suffix('.lib')}", str(part)])
        else:
            run(BASE, part, *name, *ends, "-o", path)
        if problem := problem_of(described(path.read_bytes()), platform, unit.text):
            sys.exit(f"{platform.target}, {level}, {unit.label}: {problem}")

    for level in platform.processors:
        for each in (folder / level, written / level):
            each.mkdir(parents=True, exist_ok=True)
        # Compiled once, as reading it takes longer than most of a source.
        header = written / level / "system.h"
        write(header, source.read(header.name))
        run(level, "-x", "c-header", header, "-o", f"{header}.pch")
    bare = link_without_start_up(zig, written) if "windows" in platform.target else []
    jobs = [(level, unit) for level in platform.processors for unit in units(platform, level)]
    with ThreadPoolExecutor(num_processors()) as pool:
        list(pool.map(compile_one, jobs))
    for other in [*folder.rglob("*.lib"), *folder.rglob("*.pdb")]:
        other.unlink()


def run_command(command: list[str], **settings: Any) -> str:
    """Run a command to its end, and return what it told; print that and exit if it fails."""
    result = subprocess.run(command, text=True, capture_output=True, check=False, **settings)
    if result.returncode:
        sys.exit(f"{' '.join(command)}:\n{result.stderr}")
    return result.stderr


def link_without_start_up(zig: list[str], folder: Path) -> list[str]:
    """The command that links a library for Windows without mingw-w64's start-up code.

    It is that by which zig itself links, shown on a source without a function, but for
    `dllcrt2.obj`: 35 kB of each library, compressed, that would call constructors and `atexit`.
    zig has no option for it: `-nostartfiles` does not reach it, `-nostdlib` takes too much.
    """
    empty = folder / "empty.c"
    write(empty, "\n")
    command = [*zig, str(empty), "-o", str(folder / "empty.dll")]
    told = run_command(command, env={**os.environ, "ZIG_VERBOSE_LINK": "1"})
    (line,) = [each for each in told.splitlines() if each.startswith("lld-link")]
    link, *words = line.split()
    own = ("-OUT:", "-IMPLIB:", "-ENTRY:", "-PDB")
    kept = [
        word for word in words
        if not word.startswith(own) and not word.endswith(("dllcrt2.obj", f"{empty.stem}.obj"))
    ]  # fmt: skip
    # The system's own functions first: zig's `memcpy` brings as much again.
    kept.sort(key=lambda word: "api-ms-win-crt-" not in word and not word.startswith("-"))
    return [*zig[: zig.index("cc")], link, *kept, "-NOENTRY"]


def write(path: Path, text: str) -> None:
    """Write a file unless it has this text: its date then says that nothing has changed."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")


def problem_of(library: Binary, platform: Platform, text: str) -> str:
    """What a library has that a platform's users cannot load, or lacks of its source's text."""
    processor, system = platform.target.split("-")[:2]
    if library.machine != processor:
        return f"it is for {library.machine}"
    if lacking := source.parameters(text).keys() - library.exports:
        return f"it does not export {', '.join(sorted(lacking))}"
    known = LIBRARIES[system.partition(".")[0]]
    if foreign := [each for each in library.libraries if not each.startswith(known)]:
        return f"it needs {', '.join(foreign)}"
    if library.system > platform.system:
        return f"it needs version {'.'.join(map(str, library.system))} of the system"
    if platform.target.startswith("aarch64-macos") and not library.is_signed:
        return "it is not signed"
    return ""


def make(pure: Path, tag: str, folder: Path) -> Path:
    """Make the wheel of a platform from the pure one, in a folder."""
    wheel = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*wheel, "unpack", "--dest", scratch, str(pure)], check=True)
        (content,) = Path(scratch).iterdir()
        compile_units(PLATFORMS[tag], content / "dynbatch" / "kernels" / "c" / "compiled")
        (about,) = content.glob("*.dist-info/WHEEL")
        text = about.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        tags = "\n".join([f"Tag: py3-none-{each}" for each in tag.split(".")])
        about.write_text(text.replace("Tag: py3-none-any", tags))
        subprocess.run([*wheel, "pack", "--dest-dir", str(folder), str(content)], check=True)
    (made,) = folder.glob(f"*{tag.split('.')[-1]}*.whl")
    if made.stat().st_size > MOST_BYTES:
        sys.exit(
            f"{made.name}: {made.stat().st_size / 1e6:.1f} MB are more than {MOST_BYTES / 1e6}"
        )
    return made


def here() -> str:
    """The tag of this machine's platform."""
    system = {"linux": "manylinux", "darwin": "macosx", "win32": "win"}.get(sys.platform, "?")
    tags = [tag for tag in PLATFORMS if tag.startswith(system)]
    matching = [tag for tag in tags if tag.endswith(machine.machine().lower())]
    if not matching:
        sys.exit(f"there is no wheel for {machine.machine()} and {sys.platform}")
    return matching[0]


def main(folder: Path, tags: list[str]) -> None:
    """Make the pure wheel, and one of each platform that is named; of all if none is."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*pip, "."], check=True)
    (pure,) = folder.glob("*-py3-none-any.whl")
    for tag in [here() if each == "here" else each for each in tags] or PLATFORMS:
        made = make(pure, tag, folder)
        print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
