"""Look into libraries of Linux, macOS and Windows on any machine: no program for each is needed."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple


class Binary(NamedTuple):
    """A library as its file describes it.

    machine:   the processor.
    exports:   names that others may call.
    libraries: names of the others that are loaded with it.
    system:    the oldest system that runs it: of glibc, or of macOS; () where the file says none.
    is_signed: whether it is signed, if only by its own digest: Apple's processors ask for that.
    """

    machine: str
    exports: frozenset[str]
    libraries: frozenset[str]
    system: tuple[int, ...] = ()
    is_signed: bool = False


def described(content: bytes) -> Binary:
    """The description in a library's bytes: ELF, Mach-O or PE, of 64 bits, little-endian.

    Raises:
        ValueError: it is none of them.
    """
    if content[:6] == b"\x7fELF\x02\x01":
        return _elf(content)
    if content[:4] == b"\xcf\xfa\xed\xfe":
        return _mach_o(content)
    if content[:2] == b"MZ":
        return _pe(content)
    raise ValueError("neither ELF, Mach-O nor PE of 64 bits")


def _text(content: bytes, start: int) -> str:
    return content[start : content.index(b"\0", start)].decode()


def _elf(content: bytes) -> Binary:
    (machine,) = struct.unpack_from("<H", content, 18)
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    # Of each section: type, offset, bytes, the section of its names.
    sections = [struct.unpack_from("<4xI16xQQI", content, table + k * size) for k in range(count)]

    def entries(kind: int, form: str) -> list[tuple[int, tuple[int, ...]]]:
        """The entries of the sections of a kind, each behind the offset of its names."""
        width = struct.calcsize(form)
        return [
            (sections[names][1], struct.unpack_from(form, content, start + k))
            for each, start, total, names in sections
            if each == kind
            for k in range(0, total, width)
        ]

    # Symbols that are defined, and global or weak.
    symbols = [(at, each) for at, each in entries(11, "<IBBHQQ") if each[3] and each[1] >> 4]
    libraries = [_text(content, at + each[1]) for at, each in entries(6, "<qQ") if each[0] == 1]
    asked = re.findall(rb"\0GLIBC_(\d+(?:\.\d+)+)(?=\0)", content)
    return Binary(
        {0x3E: "x86_64", 0xB7: "aarch64"}.get(machine, str(machine)),
        frozenset([_text(content, at + each[0]) for at, each in symbols]),
        frozenset(libraries),
        max([tuple(map(int, each.split(b"."))) for each in asked], default=()),
    )


_DYLIB, _SYSTEM, _SIGNATURE, _EXPORTS, _INFO = 0xC, 0x32, 0x1D, 0x80000033, 0x80000022


def _mach_o(content: bytes) -> Binary:
    machine, count = struct.unpack_from("<4xI8xI", content)
    exports, libraries, system, is_signed, at = set[str](), set[str](), (0, 0), False, 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, at)
        if command == _DYLIB:
            (start,) = struct.unpack_from("<I", content, at + 8)
            libraries.add(_text(content, at + start))
        elif command == _SYSTEM:
            (oldest,) = struct.unpack_from("<I", content, at + 12)
            system = (oldest >> 16, oldest >> 8 & 255)
        elif command in (_EXPORTS, _INFO):
            trie = at + (8 if command == _EXPORTS else 40)
            start, total = struct.unpack_from("<II", content, trie)
            exports |= _trie(content[start : start + total])
        is_signed = is_signed or command == _SIGNATURE
        at += size
    names = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
    described = names.get(machine, str(machine))
    return Binary(described, frozenset(exports), frozenset(libraries), system, is_signed)


def _trie(trie: bytes) -> set[str]:
    """The names in the tree of exports of a Mach-O file, without the underscore before each."""
    names, left = set[str](), [(0, b"")] if trie else []
    while left:
        at, name = left.pop()
        size, at = _number(trie, at)
        if size:
            names.add(name.decode().removeprefix("_"))
        at += size
        children, at = trie[at], at + 1
        for _ in range(children):
            end = trie.index(b"\0", at)
            child, after = _number(trie, end + 1)
            left.append((child, name + trie[at:end]))
            at = after
    return names


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 128:
            return value, at


def _pe(content: bytes) -> Binary:
    (head,) = struct.unpack_from("<I", content, 60)
    machine, count = struct.unpack_from("<HH", content, head + 4)
    (optional,) = struct.unpack_from("<H", content, head + 20)
    table = head + 24 + optional
    # Of each section: where it is loaded, its bytes in the file, and where they begin.
    sections = [struct.unpack_from("<12xIII", content, table + 40 * k) for k in range(count)]

    def offset(address: int) -> int:
        return next(
            address - loaded + start
            for loaded, size, start in sections
            if loaded <= address < loaded + size
        )

    exported, _, imported = struct.unpack_from("<III", content, head + 24 + 112)
    exports, libraries = [], []
    if exported:
        total, _, names = struct.unpack_from("<24xIII", content, offset(exported))
        places = struct.unpack_from(f"<{total}I", content, offset(names))
        exports = [_text(content, offset(each)) for each in places]
    at = offset(imported) if imported else 0
    while at and (name := struct.unpack_from("<12xI", content, at)[0]):
        libraries.append(_text(content, offset(name)).lower())
        at += 20
    described = {0x8664: "x86_64", 0xAA64: "aarch64"}.get(machine, str(machine))
    return Binary(described, frozenset(exports), frozenset(libraries))
