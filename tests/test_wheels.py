"""Wheels with compiled kernels: what can be checked of `make wheels` without compiling them."""

import platform
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from dynbatch.kernels.c.runtime import shipped, source
from dynbatch.kernels.c.runtime.library import SCALARS, Library, Unit
from tests.marks import needs_compiler

FOLDER = Path(__file__).parent.parent / ".ci"


@pytest.fixture(scope="module")
def wheels():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import make_wheels
    return make_wheels


def test_each_level_has_each_source_and_type_that_none_below_it_serves(wheels):
    intel, arm, *_ = wheels.PLATFORMS.values()
    every = {unit.label for unit in wheels.units(arm, shipped.BASE)}
    stems = [name.removesuffix(".c").replace("/", "_") for name in source.names()]
    assert {f"{stem}-{scalar}" for stem in stems for scalar in SCALARS.values()} < every
    labels = {
        level: [unit.label for unit in wheels.units(intel, level)] for level in intel.processors
    }
    base, avx2, avx512, bf16 = labels.values()
    assert labels.keys() == {shipped.BASE, *shipped.X86_LEVELS.values()}
    assert base == ["instructions-float"]  # which asks for the others
    assert set(avx2) == set(avx512) == every and len(avx2) == len(every)
    assert bf16 and set(bf16) < every


@pytest.mark.parametrize(
    ("system", "machine", "end"),
    [
        ("linux", "x86_64", "_x86_64"), ("linux", "aarch64", "_aarch64"),
        ("darwin", "arm64", "macosx_11_0_arm64"), ("darwin", "x86_64", "macosx_11_0_x86_64"),
        ("win32", "AMD64", "win_amd64"),
    ],
)  # fmt: skip
def test_a_machine_finds_its_platform(wheels, monkeypatch, system, machine, end):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    assert wheels.here().endswith(end)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SystemExit, match="there is no wheel for riscv64"):
        wheels.here()


def mach_o(system=(11, 0), signed=True):
    """A library of macOS that exports `softmax` and `softmax_backward`, as far as it is read."""
    trie = b"\0\1_softmax\0\x0c" + b"\2\0\x01\1_backward\0\x1b" + b"\2\0\2\0"
    commands = [
        struct.pack("<IIIIII", 0xC, 48, 24, 0, 0, 0) + b"/usr/lib/libSystem".ljust(24, b"\0"),
        struct.pack("<IIIII", 0x32, 20, 1, system[0] << 16 | system[1] << 8, 0),
        struct.pack("<IIII", 0x80000033, 16, 32 + 48 + 20 + 16 + 16, len(trie)),
        struct.pack("<IIII", 0x1D if signed else 0x26, 16, 0, 0),
    ]
    head = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), 0, 0, 0)
    return head + b"".join(commands) + trie


def pe():
    """A library of Windows that exports `softmax` and loads KERNEL32.dll, as far as it is read."""
    content = bytearray(0x300)
    content[:2], content[60:64] = b"MZ", struct.pack("<I", 64)
    struct.pack_into("<4sHH12xHH", content, 64, b"PE", 0x8664, 1, 240, 0)
    struct.pack_into("<IIII", content, 64 + 24 + 112, 0x1000, 40, 0x1040, 40)
    # One section, which is loaded at 0x1000 and begins at 0x180.
    struct.pack_into("<8sIIII", content, 64 + 24 + 240, b".rdata", 0x180, 0x1000, 0x180, 0x180)
    struct.pack_into("<24xIII", content, 0x180, 1, 0, 0x1030)
    struct.pack_into("<I", content, 0x180 + 0x30, 0x1080)
    struct.pack_into("<12xI", content, 0x180 + 0x40, 0x1090)
    content[0x200:0x208], content[0x210:0x21D] = b"softmax\0", b"KERNEL32.dll\0"
    return bytes(content)


def test_exports_and_needs_of_other_systems_are_read(wheels):
    mac, windows = wheels.described(mach_o()), wheels.described(pe())
    assert (mac.machine, mac.exports) == ("aarch64", {"softmax", "softmax_backward"})
    assert (mac.libraries, mac.system, mac.is_signed) == ({"/usr/lib/libSystem"}, (11, 0), True)
    assert (windows.machine, windows.exports) == ("x86_64", {"softmax"})
    assert (windows.libraries, windows.system) == ({"kernel32.dll"}, ())
    with pytest.raises(ValueError, match="neither ELF, Mach-O nor PE"):
        wheels.described(b"#!/bin/sh\n")


def test_a_library_that_users_of_a_platform_could_not_load_is_refused(wheels):
    linux, _, mac, _, windows = wheels.PLATFORMS.values()
    text = "EXPORT void softmax(double x) {}\n"

    def problem(library, each, text=text):
        return wheels.problem_of(library, each, text)

    assert problem(wheels.described(pe()), windows) == ""
    assert problem(wheels.described(pe()), linux) == "it needs kernel32.dll"
    assert problem(wheels.described(pe()), mac) == "it is for x86_64"
    more = text + "EXPORT void softmin(double x) {}\n"
    assert problem(wheels.described(pe()), windows, more) == "it does not export softmin"
    library = wheels.described(mach_o())._replace(libraries=frozenset(wheels.LIBRARIES["macos"]))
    assert problem(library, mac) == ""
    assert problem(library._replace(is_signed=False), mac) == "it is not signed"
    intel = wheels.PLATFORMS["macosx_11_0_x86_64"]  # whose system loads what is not signed
    assert problem(library._replace(machine="x86_64", is_signed=False), intel) == ""
    assert problem(library._replace(system=(12, 0)), mac) == "it needs version 12.0 of the system"


@needs_compiler
def test_a_library_of_this_machine_is_read(wheels):
    if sys.platform != "linux":
        pytest.skip("the compilers of other systems are free to need more")
    unit = Unit.of("softmax.c", source.read("softmax.c"), "float")
    assert Library("softmax.c").functions(np.dtype(np.float32)) is not None
    library = wheels.described(unit.kept().read_bytes())
    assert library.exports == source.parameters(unit.text).keys()
    of_this = wheels.PLATFORMS[wheels.here()]
    assert wheels.problem_of(library, of_this._replace(system=(99,)), unit.text) == ""
    assert "needs version 2." in wheels.problem_of(library, of_this._replace(system=()), unit.text)
