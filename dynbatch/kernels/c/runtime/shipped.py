"""Libraries that a wheel brings along, for machines without a C compiler.

A platform's wheel has a folder of them for each level of instructions, and what a lower level has
too is the same there. Their names say of which text they were made, so that a library of another
version is never loaded. `.ci/make_wheels.py` makes them.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "compiled"

BASE = "base"
"""The folder of what runs on every processor of the platform."""

X86_LEVELS = {3: "x86-64-v3", 4: "x86-64-v4", 5: "x86-64-v4-bf16"}
"""The folders of levels, by the number that `instructions.c` gives."""

INSTRUCTIONS = "instructions.c"


def file_name(label: str, text: str) -> str:
    """The name under which the library of a source's text is shipped; see `library.Unit`."""
    return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"


def find(label: str, text: str) -> Path | None:
    """The best library of a text for this processor, if this wheel has one."""
    name = file_name(label, text)
    for level in levels():
        path = FOLDER / level / name
        if path.is_file():
            return path
    return None


class Supported(NamedTuple):
    """The folders whose libraries this processor runs, the best first; why, where it runs none."""

    levels: tuple[str, ...]
    problem: str = ""


def levels() -> tuple[str, ...]:
    """The folders whose libraries this processor runs, the best first; none in the pure wheel."""
    return supported().levels


@cache
def supported() -> Supported:
    """Ask the processor for its instructions, where the wheel has more than one level of them."""
    # By folders, not by the machine's name: an emulator may tell the name of the real one.
    if not any([(FOLDER / level).is_dir() for level in X86_LEVELS.values()]):
        return Supported((BASE,) if (FOLDER / BASE).is_dir() else ())
    level = ctypes.c_int()
    try:
        for path in (FOLDER / BASE).glob("instructions-float-*.so"):
            ctypes.CDLL(str(path)).instruction_level(ctypes.byref(level))
    except (OSError, AttributeError) as error:
        return Supported((), f"they cannot be loaded: {error}")
    numbers = [each for each in sorted(X86_LEVELS, reverse=True) if each <= level.value]
    problem = "" if numbers else "this processor has no AVX2"
    return Supported(tuple([X86_LEVELS[each] for each in numbers]), problem)
