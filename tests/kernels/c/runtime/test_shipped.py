"""Libraries that a wheel brings along, where there is no compiler."""

import os
import subprocess
import sys

import numpy as np
import pytest

from dynbatch.kernels import backends
from dynbatch.kernels.c.runtime import library, shipped, source
from dynbatch.kernels.c.runtime.compiler import Compiler, compiler

BEST = "x86-64-v4"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A folder of some libraries, for a processor of level 4."""
    chosen = compiler()
    if chosen is None:
        pytest.skip("there is no C compiler to make libraries with")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)

    def put(folder, name, text=None):
        unit = library.Unit.of(name, text or source.read(name), "float")
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / shipped.file_name(*unit)
        chosen.compile(unit.text, path)
        return unit

    level_4 = '#include "common.h"\nEXPORT void instruction_level(int* level) { *level = 4; }\n'
    put("base", "instructions.c", level_4)
    shipped.supported.cache_clear()
    yield put
    shipped.supported.cache_clear()


def test_the_best_level_that_the_processor_has_is_taken(wheel):
    for folder in shipped.X86_LEVELS.values():
        unit = wheel(folder, "softmax.c")
    assert shipped.levels() == (BEST, "x86-64-v3")
    assert shipped.find(*unit).parent.name == BEST
    shipped.find(*unit).unlink()
    assert shipped.find(*unit).parent.name == "x86-64-v3"
    assert shipped.find(unit.label, unit.text + "\n") is None  # of another version


def test_one_folder_serves_processors_of_other_kinds(wheel):
    assert shipped.levels() == ("base",)


def test_a_wheel_whose_libraries_do_not_load_is_told_beside_the_missing_compiler(
    wheel, tmp_path, monkeypatch
):
    wheel(BEST, "softmax.c")
    (path,) = (tmp_path / "base").iterdir()
    path.write_bytes(b"of another system")
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert "no C compiler, and the wheel's kernels do not run (they cannot" in library.reason()
    assert library.Library("softmax.c").functions(np.dtype(np.float32)) is None
    path.unlink()
    shipped.supported.cache_clear()
    assert "(this processor has no AVX2)" in library.reason()
    monkeypatch.setenv("DYNBATCH_NATIVE", "wheel")
    assert library.reason().endswith("do not run (this processor has no AVX2)")


def test_where_the_compiler_fails_the_wheels_kernels_run(wheel, monkeypatch, capsys):
    wheel(BEST, "softmax.c")
    failing = Compiler(("false",), "identity of a compiler that fails")
    for module in (library, backends):
        monkeypatch.setattr(module, "compiler", lambda: failing)
    monkeypatch.setattr(library, "switch", library.NativeCode())
    float32 = np.dtype(np.float32)
    assert library.Library("softmax.c").functions(float32) is not None
    assert library.Library("move.c").functions(float32) is None
    assert not library.reason() and "false" in backends.backends()["c"]
    told = capsys.readouterr().err.splitlines()
    assert "the wheel's C kernels run, and nothing is compiled: false" in told[1]
    assert len([line for line in told if "dynbatch: the wheel's" in line]) == 1


def test_without_a_compiler_files_are_the_wheels_and_printed_cells_are_not(wheel, monkeypatch):
    wheel(BEST, "softmax.c")
    for module in (library, backends):
        monkeypatch.setattr(module, "compiler", lambda: None)
    assert not library.reason()
    float32 = np.dtype(np.float32)
    softmax = library.Library("softmax.c").functions(float32)
    assert vars(softmax).keys() == source.parameters(source.read("softmax.c")).keys()
    for absent in (
        library.Library("move.c"),
        library.Library("cell", source.read("softmax.c") + " "),
    ):
        assert absent.functions(float32) is None
    assert not library.reason()  # nothing has failed: the kernels that are there go on
    assert shipped.levels()[0] in backends.backends()["c"]


@pytest.fixture
def no_wheel(tmp_path, monkeypatch):
    """A folder of no libraries."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "missing")
    shipped.supported.cache_clear()
    yield
    shipped.supported.cache_clear()


def test_without_a_wheel_or_a_compiler_the_reason_says_what_to_install(no_wheel, monkeypatch):
    monkeypatch.setattr(library, "switch", library.NativeCode())
    monkeypatch.setattr(library, "compiler", lambda: None)
    monkeypatch.delenv("DYNBATCH_NATIVE", raising=False)
    assert "install gcc or clang" in library.reason()
    monkeypatch.setenv("DYNBATCH_NATIVE", "wheel")
    assert library.reason().startswith("DYNBATCH_NATIVE=wheel compiles nothing")
    assert compiler.__wrapped__() is None


NAMES = """
import dynbatch  # its modules print some of the sources
from dynbatch.kernels.c.runtime import library, shipped, source
print(*[shipped.file_name(*library.Unit.of(n, source.read(n), "float")) for n in source.names()])
"""


def test_sources_have_one_name_in_each_locale(tmp_path):
    chosen = compiler()
    if chosen is None:
        pytest.skip("there is no C compiler")
    program = NAMES + f"{chosen!r}.compile('// \\u03c3\\n', '{tmp_path}/commented.so')"
    program = "from dynbatch.kernels.c.runtime.compiler import Compiler" + program
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    units = [library.Unit.of(name, source.read(name), "float") for name in source.names()]
    result = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **plain}, capture_output=True, text=True
    )
    assert result.stdout.split() == [shipped.file_name(*unit) for unit in units], result.stderr
    assert (tmp_path / "commented.so").exists(), result.stderr


def test_the_level_of_this_processor_is_one_that_its_compiler_knows(tmp_path):
    chosen = compiler()
    if chosen is None:
        pytest.skip("there is no C compiler")
    functions = library.Library("instructions.c").functions(np.dtype(np.float32))
    level = np.zeros(1, np.int32)
    functions.instruction_level(level.ctypes.data)
    body = (
        source.read("instructions.c")
        + """
EXPORT void native_level(int* level) {
    *level = 0;
#ifdef __AVX2__
    *level = 3;
#endif
#ifdef __AVX512BW__
    *level = 4;
#endif
#if defined(__AVX512BW__) && defined(__AVX512BF16__)
    *level = 5;
#endif
}
"""
    )
    native = library.Library("native.c", body).functions(np.dtype(np.float32))
    expected = np.zeros(1, np.int32)
    native.native_level(expected.ctypes.data)
    assert level == expected
