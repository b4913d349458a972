"""C source as package data: `NAME.c` preceded by the headers it includes, and its functions.

A source is compiled for one scalar type: it calls this REAL, and `common.h` defines what follows
from it. Functions that Python calls are `EXPORT void NAME(...)`; their parameters are pointers,
`ptrdiff_t`, `int` and `double`.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

_EXPORT = re.compile(r"^EXPORT void (\w+)\(([^)]*)\)", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "([\w/]+\.h)"\n', re.MULTILINE)
_TYPES: dict[str, Any] = {
    "ptrdiff_t": ctypes.c_ssize_t, "int": ctypes.c_int, "double": ctypes.c_double,
}  # fmt: skip


class CParameter(NamedTuple):
    """One parameter of a C function: `const REAL* x` is ("x", "REAL", True, True)."""

    name: str
    type: str
    is_pointer: bool
    is_read_only: bool

    @property
    def ctype(self) -> Any:
        return ctypes.c_void_p if self.is_pointer else _TYPES[self.type]


_MEMBERS = {
    ctypes.c_void_p: "place", ctypes.c_ssize_t: "whole", ctypes.c_int: "whole",
    ctypes.c_double: "real",
}  # fmt: skip


def join(name: str, body: str, scalar: str, factor_bits: int = 0) -> str:
    """A complete source: `body` with the headers it includes, each once, for a scalar type.

    Args:
        name:   what compiler messages call the body, e.g. "softmax.c".
        scalar: "float" or "double".
        factor_bits: bits of mantissa to which `product.h` rounds factors; 0 leaves them whole.
    """
    seen: set[str] = set()

    def expand(name: str, text: str) -> str:
        def included(include: re.Match[str]) -> str:
            header = include[1]
            line = text.count("\n", 0, include.end()) + 1
            back = f'#line {line} "{name}"\n'
            if header in seen:
                return back
            seen.add(header)
            return expand(header, read(header)) + back

        return f'#line 1 "{name}"\n' + _INCLUDE.sub(included, text)

    head = f"#define REAL {scalar}\n#define REAL_IS_{scalar.upper()} 1\n"
    if factor_bits:
        head += f"#define FACTOR_BITS {factor_bits}\n"
    return head + expand(name, body) + packed(body)


printed: dict[str, Callable[[], str]] = {}
"""Texts that are made when they are first read, by the names under which files include them."""


@cache
def read(name: str) -> str:
    """A file of `kernels/c/sources` by its path below that folder, or what is `printed`."""
    return printed[name]() if name in printed else _sources().joinpath(name).read_text("utf-8")


@cache
def names() -> tuple[str, ...]:
    """The `.c` files of `kernels/c/sources`, as paths below that folder, and those `printed`."""
    files = [name for name in printed if name.endswith(".c")]

    def walk(folder: Traversable, before: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{before}{entry.name}/")
            elif entry.name.endswith(".c"):
                files.append(before + entry.name)

    walk(_sources(), "")
    return tuple(sorted(files))


def _sources() -> Traversable:
    return resources.files("dynbatch.kernels.c").joinpath("sources")


def parameters(body: str) -> dict[str, list[CParameter]]:
    """The parameters of each exported function."""
    return {
        match[1]: [_parameter(p) for p in match[2].split(",") if p.strip() not in ("", "void")]
        for match in _EXPORT.finditer(body)
    }


def _parameter(declaration: str) -> CParameter:
    *kinds, name = declaration.replace("*", " * ").split()
    named = [kind for kind in kinds if kind not in ("const", "*")]
    return CParameter(name, named[0], "*" in kinds, kinds[0] == "const")


def packed(body: str) -> str:
    """The exported functions as NAME_packed, whose arguments lie in a row of 8 bytes each."""
    text = ["\ntypedef union { long long whole; double real; void* place; } argument;"]
    for name, arguments in parameters(body).items():
        values = ", ".join([f"a[{k}].{_MEMBERS[each.ctype]}" for k, each in enumerate(arguments)])
        text += [
            f"EXPORT void {name}_packed(const void* row) {{",
            f"    const argument* a = row;\n    {name}({values});\n}}",
        ]
    return "\n".join([*text, ""])


def packing(types: list[Any]) -> struct.Struct:
    """The packing of the arguments of a function for NAME_packed; NULL is 0."""
    return struct.Struct("".join(["d" if kind is ctypes.c_double else "q" for kind in types]))
